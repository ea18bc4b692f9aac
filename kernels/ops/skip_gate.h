#pragma once
#include "kernels/ops/op.h"

namespace recurve {

// y = (h + skip * x) * silu(z): what leaves the mLSTM block of the xLSTM paper.
// Source: Beck et al. 2024 (xLSTM), fig. 11.
struct SkipGateArgs {
  int rows;
  int D;
  int x_stride;       // floats from a row of x to the next
  int z_stride;       // floats from a row of z to the next
  const float* h;     // (rows, D)
  const float* skip;  // (D)
  const float* x;     // (rows, D)
  const float* z;     // (rows, D)
  float* y;           // (rows, D); may be h
};

struct SkipGateKernel {
  static constexpr const char* kName = "skip_gate";
  Op<SkipGateArgs> skip_gate;
  static constexpr auto kOp = &SkipGateKernel::skip_gate;
};

}  // namespace recurve
