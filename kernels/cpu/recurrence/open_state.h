#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/tensor.h"

namespace recurve::cpu {

// What is stored from value `first` on.
StateData stored_from(const StateData& state, int64_t first);

// What the state would keep of these values, in their place.
void round_as(const StateData& state, float* values, int64_t count);

// `count` values of each of `rows` rows of a state, which are `width` apart, from `first` on.
struct StatePart {
  int64_t first;
  int64_t rows;
  int64_t count;
  int64_t width;

  static StatePart whole(int64_t first, int64_t count) { return {first, 1, count, count}; }
};

// A part of a state while an op works on it, in fp32: the state itself, or where that is BF16 a
// copy of it. An op that takes one row reads and writes each value but once or twice: it does so on
// BF16 as it is stored, and asks for no copy.
class OpenState {
 public:
  // Floats that the copy takes, of `values` values.
  static size_t copy_floats(const StateData& state, int64_t values) {
    return state.dtype == DType::kBF16 ? static_cast<size_t>(values) : 0;
  }

  // copy: (copy_floats)
  OpenState(const StateData& state, const StatePart& part, bool as_stored, float* copy);

  StateData data() const { return open_; }    // (rows, stride)
  int64_t stride() const { return stride_; }  // values from row to row

  // To be called after each chunk: puts what is there into the state, rounded as it keeps it.
  void end_chunk();

 private:
  const StatePart part_;
  uint16_t* stored_ = nullptr;  // of a BF16 state that is copied
  StateData open_;
  int64_t stride_;
};

}  // namespace recurve::cpu
