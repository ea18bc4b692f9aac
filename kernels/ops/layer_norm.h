#pragma once
#include <cstdint>

#include "kernels/ops/op.h"

namespace recurve {

// y = (x - mean) * rsqrt(variance + eps) * w + b + residual over each of the G equal groups of a
// row, with the biased variance. One group: layer norm; several: group norm, the norm of heads.
// Source: Ba et al. 2016, eq. 3 and 4; Wu and He 2018.
struct LayerNormArgs {
  int rows;
  int D;  // width of a row
  int G;  // groups; divides D
  float eps;
  const float* x;         // (rows, D)
  const float* w;         // (D)
  const float* b;         // (D) or null: zeros
  const float* residual;  // (rows, D) or null: zeros; may be y
  float* y;               // (rows, D); may be x
  float* sum = nullptr;   // (rows, D) or null: sum += x first, and sum is normed instead of x
  // (rows, D) instead of y, or null; where this backend's linear op takes bf16
  uint16_t* y_bf16 = nullptr;
};

struct LayerNormKernel {
  static constexpr const char* kName = "layer_norm";
  Op<LayerNormArgs> layer_norm;
  static constexpr auto kOp = &LayerNormKernel::layer_norm;
};

}  // namespace recurve
