#pragma once
#include <cstdint>

#include "kernels/ops/op.h"

namespace recurve {

// y = g * rsqrt(mean(g^2) + eps) * w with g = x silu(z), the mean over each of the G equal groups
// of a row: the gate is applied before the norm. Without z and w the plain norm of each group.
// Source: Mamba-2 (Dao and Gu 2024), sec. 7.3, whose groups are those of B and C; and, without gate
// and weight, the norms of dt, B and C in Falcon Mamba (Zuo et al. 2024), sec. 2.
struct GatedRmsNormArgs {
  int rows;
  int D;  // width of a row
  int G;  // groups; divides D
  float eps;
  int x_stride;    // floats from a row of x to the next
  int z_stride;    // floats from a row of z to the next
  int y_stride;    // floats from a row of y to the next
  const float* x;  // (rows, D)
  const float* z;  // (rows, D) or null: no gate
  const float* w;  // (D) or null: ones
  float* y;        // (rows, D); may be x, with the same stride
  // (rows, D), of the same stride, instead of y, or null; where this backend's linear op takes bf16
  uint16_t* y_bf16 = nullptr;
};

struct GatedRmsNormKernel {
  static constexpr const char* kName = "gated_rms_norm";
  Op<GatedRmsNormArgs> gated_rms_norm;
  static constexpr auto kOp = &GatedRmsNormKernel::gated_rms_norm;
};

}  // namespace recurve
