#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "server/state/state_form.h"

namespace recurve {

// The front of a written state: what server/state/state_form.cc knows of it in addition to
// StateHeader.

inline constexpr uint32_t kStateVersion = 4, kOldestStateVersion = 2;
// Of all but states with an adapter, which programs before version 4 cannot continue.
inline constexpr uint32_t kVersionWithoutAdapter = 3;
inline constexpr size_t kStateFixed = 32;  // bytes in front of the header

// The pieces behind those of the state.
inline constexpr const char *kHistoryPiece = "history", *kAnswerPiece = "answer";

// A piece of the data.
struct Summed {
  std::string name;
  uint64_t bytes = 0, sum = 0;
};

struct WrittenHeader {
  StateHeader header = {};                   // without history and answer's ids
  size_t history = 0, answer_ids = 0;        // how many
  uint64_t data_begin = 0, data = 0;         // bytes
  std::vector<Summed> pieces = {};           // of all of it, in its order
  std::vector<StatePieceLayout> order = {};  // of the state, in the order of the data
};

struct WrittenPages {
  uint64_t id = 0, checksum = 0;  // of this group
  PageGroupRef base = {};
  int64_t first = 0;
  uint64_t data_begin = 0;
  std::vector<Summed> pages = {};
};

struct WrittenTokens {
  uint64_t id = 0;
  int64_t first = 0;
  std::vector<uint32_t> tokens = {};
};

// The header as JSON. pieces: of all of the data, in its order.
std::string json_of(const StateHeader& header, const std::vector<Summed>& pieces);
std::string json_of(const WrittenPages& group);
std::string json_of(const WrittenTokens& tokens);
// Throw StateError.
WrittenHeader parse_header(uint64_t bytes, const ReadAt& read);
WrittenPages parse_pages(uint64_t bytes, const ReadAt& read);
WrittenTokens parse_tokens(uint64_t bytes, const ReadAt& read);
uint64_t parse_id(uint64_t bytes, const ReadAt& read);  // of any

[[noreturn]] inline void refuse_state(EndReason reason, const std::string& what) {
  throw StateError(reason, what);
}
[[noreturn]] inline void refuse_damaged(const std::string& what) {
  refuse_state(EndReason::kStateLost, what);
}

}  // namespace recurve
