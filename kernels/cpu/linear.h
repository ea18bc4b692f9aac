#pragma once
#include <cstddef>

#include "kernels/ops/linear.h"

namespace recurve::cpu {

// The products of one format for the rows [row_begin, row_end) and the outputs [begin, end), with
// bias and residual: of a row the same bits, whatever the ranges are. rounded: the rows of x where
// the block reads them so, see LinearProducts; then args.x is not read.
using LinearBlock = void (*)(const LinearArgs& args, const std::byte* rounded, int64_t row_begin,
                             int64_t row_end, int64_t begin, int64_t end);

// How a linear layer multiplies.
struct LinearProducts {
  LinearBlock block;
  int64_t outputs = 8;  // ranges of outputs begin at multiples of this
  // Where x is rounded before: bytes of a row, a multiple of 64, and how it is made. A row is
  // 64-byte aligned.
  int64_t (*rounded_bytes)(int64_t K) = nullptr;
  void (*round)(const float* x, int64_t K, std::byte* row) = nullptr;
};

// The linear op: norm, products shared among the threads, gate and cap.
void linear_with(const LinearProducts& products, const LinearArgs& args, Stream& stream);

// sum + bias + residual, for `count` outputs of a row from output n on.
inline void finish_outputs(const LinearArgs& a, int64_t row, int64_t n, int64_t count,
                           const float* sums) {
  const int64_t at = row * a.W.N + n;
  for (int64_t j = 0; j < count; ++j) {
    float sum = sums[j];
    if (a.bias != nullptr) sum += a.bias[n + j];
    if (a.residual != nullptr) sum += a.residual[at + j];
    a.y[at + j] = sum;
  }
}

}  // namespace recurve::cpu
