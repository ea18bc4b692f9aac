#pragma once
#include "kernels/kernels.h"
#include "model/model.h"

// What all layers of a model share whose states are written once in several rows: how many rows lie
// next to the state of a sequence, one array of the state.
namespace recurve {

inline void add_held_rows(int written_every, StateLayout& layout) {
  if (written_every == 1) return;
  layout.arrays.push_back({.name = "held",
                           .dtype = DType::kI32,
                           .shape = {1},
                           .values = StateValues::kHeldRows,
                           .written_every = written_every});
}
inline size_t bytes_of_held_rows(int written_every, const StepLimits& limits) {
  return written_every == 1 ? 0 : Arena::bytes_for(static_cast<size_t>(limits.rows));
}

// Counts the rows of a step, before its layers. array: the number of theirs.
inline HeldRows count_held_rows(int written_every, int chunk, const Ragged& seqs,
                                const StatePool& states, size_t array, const Kernels& kernels,
                                Arena& arena, Stream& stream) {
  if (written_every == 1) return {};
  static_assert(sizeof(float) == sizeof(int32_t));
  auto* const before = reinterpret_cast<int32_t*>(arena.floats(static_cast<size_t>(seqs.rows)));
  kernels.held_rows({.seqs = seqs,
                     .chunk = chunk,
                     .every = written_every,
                     .count = states.array<int32_t>(array),
                     .before = before},
                    stream);
  return {written_every, before};
}

}  // namespace recurve
