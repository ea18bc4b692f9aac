#pragma once
#include <cstdint>

namespace recurve {

// x * rsqrt(mean(x^2) + eps) * norm before a linear layer, begun by the op that makes x: it leaves
// what the layer multiplies, and what its rows' scales follow from, which can wait.
struct BegunNorm {
  uint16_t* x = nullptr;     // (rows, K) in bf16: x * norm
  float* squares = nullptr;  // (rows, K / kSquares): sums of so many values of x, squared
  float* scales = nullptr;   // (rows): zeros, in which the layer notes what it finds
  static constexpr int kSquares = 8;
};

}  // namespace recurve
