#pragma once
#include "kernels/ops/op.h"

namespace recurve {

// y = x * rsqrt(mean(x^2) + eps) * w, the mean over the D values of a row.
// Source: Zhang and Sennrich 2019, eq. 4, with eps inside the root as in PyTorch's nn.RMSNorm.
struct RmsNormArgs {
  int rows;
  int D;
  float eps;
  const float* x;  // (rows, D)
  const float* w;  // (D)
  float* y;        // (rows, D); may be x
};

struct RmsNormKernel {
  static constexpr const char* kName = "rms_norm";
  Op<RmsNormArgs> rms_norm;
  static constexpr auto kOp = &RmsNormKernel::rms_norm;
};

}  // namespace recurve
