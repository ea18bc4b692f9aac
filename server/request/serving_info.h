#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/request/state_transfer.h"

namespace recurve {

// The special tokens to use, after the model's rules have corrected what its files say.
struct TokenRules {
  // Put in front of a text where the state is fresh. Empty: never.
  std::optional<int32_t> bos;
  std::vector<int32_t> eos;            // control tokens first
  std::vector<std::string> eos_files;  // [eos] "config.json, tokenizer_config.json"
  // The model cannot do without BOS: a prompt of ids gets it too, unless it begins with it.
  bool force_bos = false;
};

// What is being served: filled by main, which knows model and engine, for the frontends,
// which do not. Shown by them; the token rules and limits are what requests are checked against.
struct ServingInfo {
  struct Op {
    std::string name;
    std::string implementation;
  };

  std::string model_name;
  std::string family;
  int64_t parameters = 0;
  int64_t weight_bytes = 0;
  std::string weight_type;
  int32_t vocab_rows = 0;   // length of a logits row, padding included
  int64_t state_bytes = 0;  // of one session
  int32_t chunk_tokens = 0;
  std::string fingerprint;
  std::string backend;
  std::vector<Op> ops;
  TokenRules tokens;

  int32_t slots = 0;
  int64_t max_host_bytes = 0;      // of session states and marks
  double default_ttl_seconds = 0;  // of sessions; 0: never
  ReadState read_state = {};       // of states that come in; empty: none may
  CheckFront check_front = {};     // of those that are too long
  int64_t most_written_bytes = 0;  // of such a one
};

}  // namespace recurve
