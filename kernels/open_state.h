#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/tensor.h"

namespace recurve {

// A part of a state while an op of a host backend works on it, in fp32: the state itself, or where
// that is BF16 a copy of it.
class OpenState {
 public:
  // Floats that the copy takes, of `count` values.
  static size_t room(const StateData& state, int64_t count) {
    return state.dtype == DType::kBF16 ? static_cast<size_t>(count) : 0;
  }

  // Values [first, first + count) of the state. copy: (room)
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

  // What the state would keep of these values, in their place.
  void round(float* values, int64_t count) const {
    if (stored_ == nullptr) return;
    std::transform(values, values + count, values,
                   [](float value) { return bf16_to_f32(f32_to_bf16(value)); });
  }

 private:
  const int64_t count_;
  uint16_t* stored_ = nullptr;  // (count) of a BF16 state
  float* values_ = nullptr;
};

// The same, of some columns of a matrix of a state.
class OpenColumns {
 public:
  // Floats that the copy takes, of `count` columns.
  static size_t room(const StateData& state, int64_t rows, int64_t count) {
    return OpenState::room(state, rows * count);
  }

  // `count` values from `first` on of each of the rows, which are `width` apart. copy: (room)
  OpenColumns(const StateData& state, int64_t first, int64_t rows, int64_t width, int64_t count,
              float* copy)
      : rows_(rows), width_(width), count_(count) {
    if (state.dtype == DType::kBF16) {
      stored_ = static_cast<uint16_t*>(state.data) + first;
      values_ = copy;
      read();
    } else {
      values_ = state.f32() + first;
    }
  }

  float* values() const { return values_; }                                // (rows, stride)
  int64_t stride() const { return stored_ == nullptr ? width_ : count_; }  // floats from row to row

  // See OpenState.
  void end_chunk() {
    if (stored_ == nullptr) return;
    for (int64_t row = 0; row < rows_; ++row) {
      const float* values = values_ + row * count_;
      std::transform(values, values + count_, stored_ + row * width_, f32_to_bf16);
    }
    read();
  }

 private:
  void read() {
    for (int64_t row = 0; row < rows_; ++row) {
      const uint16_t* stored = stored_ + row * width_;
      std::transform(stored, stored + count_, values_ + row * count_, bf16_to_f32);
    }
  }

  const int64_t rows_, width_, count_;
  uint16_t* stored_ = nullptr;  // of a BF16 state
  float* values_ = nullptr;
};

}  // namespace recurve
