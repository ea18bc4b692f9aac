#pragma once

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

}  // namespace recurve
