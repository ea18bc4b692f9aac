#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/request/binding.h"
#include "server/request/state_transfer.h"

namespace recurve {

// The special tokens, from the model's files with the corrections of its family.
struct TokenRules {
  // Prepended to a text if the state is fresh. Empty: never.
  std::optional<int32_t> bos;
  std::vector<int32_t> eos;            // control tokens first
  std::vector<std::string> eos_files;  // [eos] "config.json, tokenizer_config.json"
  // The model needs BOS: a prompt of ids gets it too, unless it begins with it.
  bool force_bos = false;
};

// Description of the served model and of the server's limits, for the frontends: they show it and
// check requests against it.
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
  int32_t vocab_rows = 0;    // length of a logits row, padding included
  int32_t hidden_width = 0;  // dimensions of an embedding; 0: the model has none
  int64_t state_bytes = 0;   // of one session
  // Of models whose states grow: bytes that each token adds, of a page, and the most tokens.
  int64_t state_bytes_per_token = 0;
  int64_t page_bytes = 0;
  int64_t max_session_tokens = 0;
  int32_t chunk_tokens = 0;
  std::string fingerprint;         // of the model
  std::string system_fingerprint;  // of all that decides over the bits of an answer
  std::string backend;
  std::vector<Op> ops;
  TokenRules tokens;

  int32_t slots = 0;
  int64_t max_host_bytes = 0;      // of session states and marks
  double default_ttl_seconds = 0;  // of sessions; 0: never
  ReadState read_state = {};       // reads imported states; empty: imports are off
  // Of states that page groups belong to; empty: they are not written or read here.
  ReadPagedState read_paged_state = {};
  JoinState join_state = {};
  CheckFront check_front = {};                       // checks the front of states that are too long
  int64_t most_written_bytes = 0;                    // bound of an imported state
  std::vector<InitialStatePtr> initial_states = {};  // in the order of the flags
  std::vector<BoundAdapterPtr> adapters = {};        // the same
};

}  // namespace recurve
