#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "server/request/state_transfer.h"
#include "server/session/session.h"

namespace recurve {

// The state of the snapshot, whose image is set and may be read. header: of it.
std::shared_ptr<StateSource> source_of(StateHeader header, StateImage image);

// What a state that has come in holds.
struct ImportedState final : ReadyState {
  Snapshot at;
  // See StateHeader.
  std::vector<uint32_t> tokens = {};
  int64_t tokens_first = 0;
  uint64_t tokens_before = 0;

  // Its tokens, as far as they are known, of which `most` are stored.
  TokenLog log(int64_t most) const;
};

// The snapshot of an initial state.
const Snapshot& snapshot_of(const InitialState& initial);

// Reads states that fit `wanted`, its layout and vocabulary included. Their memory, which is not
// ImageMemory's, goes with them.
ReadState state_reader(StateHeader wanted);
ReadPagedState paged_state_reader(StateHeader wanted);
JoinState state_joiner(StateHeader wanted);
// And refuses a state by its beginning that is of no such kind.
CheckFront front_checker(StateHeader wanted);

}  // namespace recurve
