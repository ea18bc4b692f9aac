#pragma once
#include "kernels/ops/op.h"

namespace recurve {

// What linear attention makes of the queries and keys of a head before it multiplies them.
enum class FeatureMap {
  kNone,     // y = x                                                                    D -> D
  kSoftmax,  // y = softmax([2 x, -2 x])                                                 D -> 2 D
  kProduct,  // y = a * b, x being [a, b]                                              2 D -> D
  kDpfp,     // u = [relu(x), relu(-x)]; y = [u * u_1, u * u_2, u * u_3, u * u_4], u_j  D -> 8 D
             // being u turned by j: u_j[i] = u[(i - j) mod 2 D]
};

// Widths of y in terms of D.
constexpr int mapped_width(FeatureMap map) {
  return map == FeatureMap::kSoftmax ? 2 : map == FeatureMap::kDpfp ? 8 : 1;
}

// y = f(x), head by head, divided by (sum y + sum_eps) where sum_eps is not 0.
// Source: Zhang et al. 2024 (Hedgehog), eq. 6, as fla modules/feature_map.py has it; Schlag et al.
// 2021 (DPFP), eq. 37, with nu = 4; fla layers/linear_attn.py (the sum).
struct FeatureMapArgs {
  int rows;
  int H;
  int D;
  FeatureMap map;
  float sum_eps;
  int x_stride;    // floats from a row of x to the next
  const float* x;  // (rows, H, D); kProduct: (rows, H, 2 D)
  float* y;        // (rows, H, mapped_width D), dense; does not overlap x
};

struct FeatureMapKernel {
  static constexpr const char* kName = "feature_map";
  Op<FeatureMapArgs> feature_map;
  static constexpr auto kOp = &FeatureMapKernel::feature_map;
};

}  // namespace recurve
