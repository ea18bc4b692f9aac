#pragma once
#include "kernels/tensor.h"

namespace recurve {

// y = x W^T + bias + residual, accumulated in fp32.
// A row of y depends on its row of x alone: not on how many rows there are, nor on where it stands
// among them. That is what makes a token's result independent of its neighbours in the batch.
struct LinearArgs {
  int rows;
  Matrix W;                         // (N, K)
  const float* bias = nullptr;      // (N) or null
  const float* residual = nullptr;  // (rows, N) or null; may be y
  const float* x = nullptr;         // (rows, K); does not overlap y
  float* y = nullptr;               // (rows, N)
};

}  // namespace recurve
