#pragma once
#include <cstdint>

namespace recurve {

// A norm before a linear layer, x * rsqrt(mean(x^2) + eps) * norm, divided between the op that
// makes x and the layer: the op leaves what the layer multiplies, and what its rows' scales follow
// from; the layer finds the scales and applies them to its sums.
struct DeferredRmsNorm {
  uint16_t* x = nullptr;     // (rows, K) in bf16: x * norm
  float* squares = nullptr;  // (rows, K / kSquares): sums of so many values of x, squared
  float* scales = nullptr;   // (rows): zeros, in which the layer notes what it finds
  static constexpr int kSquares = 8;

  // Where all of it is in so many floats, from multiples of 16 bytes on. K is a multiple of 8.
  static int64_t floats(int64_t rows, int64_t K) { return rows * (K / 2 + K / kSquares + 1); }
  static DeferredRmsNorm in(float* memory, int64_t rows, int64_t K) {
    float* squares = memory + rows * K / 2;
    return {reinterpret_cast<uint16_t*>(memory), squares, squares + rows * K / kSquares};
  }
};

}  // namespace recurve
