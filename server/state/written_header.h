#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "server/state/state_form.h"

namespace recurve {

// The front of a written state: what server/state/state_form.cc knows of it beside StateHeader.

inline constexpr uint32_t kStateVersion = 2, kOldestStateVersion = 1;
inline constexpr size_t kStateFixed = 32;  // bytes in front of the header
// Bytes of the data of version 1 that a checksum is of.
inline constexpr size_t kStatePart = size_t{1} << 16;

// The pieces behind those of the state.
inline constexpr const char *kHistoryPiece = "history", *kAnswerPiece = "answer";

// Data that a checksum is of: a piece, or one of the parts of version 1.
struct Summed {
  std::string name;
  uint64_t bytes = 0, sum = 0;
};

struct WrittenHeader {
  StateHeader header = {};             // without history and answer's ids
  size_t history = 0, answer_ids = 0;  // how many
  uint32_t version = 0;
  uint64_t data_begin = 0, data = 0;         // bytes
  std::vector<Summed> pieces = {};           // of all of it, in its order; version 1 has none
  std::vector<StatePieceLayout> order = {};  // of the state, in the order of the data
};

// The header as JSON. pieces: of all of the data, in its order.
std::string json_of(const StateHeader& header, const std::vector<Summed>& pieces);
// Throws StateError.
WrittenHeader parse_header(uint64_t bytes, const ReadAt& read);

// All bytes of a state of that version, with so many of the header and of the data.
uint64_t written_bytes(uint32_t version, uint64_t header, uint64_t data);
// How many checksums version 1 has of so many bytes of data.
uint64_t state_parts(uint64_t data);

[[noreturn]] inline void refuse_state(EndReason reason, const std::string& what) {
  throw StateError(reason, what);
}
[[noreturn]] inline void refuse_damaged(const std::string& what) {
  refuse_state(EndReason::kStateLost, what);
}

}  // namespace recurve
