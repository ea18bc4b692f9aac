#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/tensor.h"

namespace recurve::reference {

// A part of a state while an op works on it, in fp32: the state itself, or where
// that is BF16 a copy of it.
class OpenState {
 public:
  // Floats that the copy takes, of `count` values.
  static size_t copy_floats(const StateData& state, int64_t count) {
    return state.dtype == DType::kBF16 ? static_cast<size_t>(count) : 0;
  }

  // Values [first, first + count) of the state. copy: (copy_floats)
  OpenState(const StateData& state, int64_t first, int64_t count, float* copy) : count_(count) {
    if (state.dtype == DType::kBF16) {
      stored_ = static_cast<uint16_t*>(state.data) + first;
      values_ = copy;
      std::transform(stored_, stored_ + count, values_, bf16_to_f32);
    } else {
      values_ = state.f32() + first;
    }
  }

  float* values() const { return values_; }  // (count)

  // To be called after each chunk: puts what is there into the state, rounded as it keeps it.
  void end_chunk() {
    if (stored_ == nullptr) return;
    std::transform(values_, values_ + count_, stored_, f32_to_bf16);
    std::transform(stored_, stored_ + count_, values_, bf16_to_f32);
  }

 private:
  const int64_t count_;
  uint16_t* stored_ = nullptr;  // (count) of a BF16 state
  float* values_ = nullptr;
};

}  // namespace recurve::reference
