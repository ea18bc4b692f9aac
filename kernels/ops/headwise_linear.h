#pragma once
#include "kernels/ops/op.h"
#include "kernels/tensor.h"

namespace recurve {

// A block-diagonal linear layer: of H equal parts of a row, each goes through a separate matrix,
//   y[h, o] = sum_k W[h, o, k] x[h, k] + bias[h, o]
// accumulated in fp32. A row of y depends on its row of x alone.
// Source: Beck et al. 2024 (xLSTM), fig. 9 and 10, "blockdiagonal" projections.
struct HeadwiseLinearArgs {
  int rows;
  int H;           // parts
  Matrix W;        // (H N, K): the matrices one below the other, N outputs and K inputs each
  int x_stride;    // floats from a row of x to the next
  int y_stride;    // floats from a row of y to the next
  const float* x;  // (rows, H, K)
  float* y;        // (rows, H, N); does not overlap x
  const float* bias = nullptr;  // (H, N) or null
};

struct HeadwiseLinearKernel {
  static constexpr const char* kName = "headwise_linear";
  Op<HeadwiseLinearArgs> headwise_linear;
  static constexpr auto kOp = &HeadwiseLinearKernel::headwise_linear;
};

}  // namespace recurve
