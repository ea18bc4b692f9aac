#pragma once
#include <cstdint>

#include "kernels/ops/op.h"

namespace recurve {

// y = sigmoid(o) * LayerNorm_head(h) * w: the norm over the DV values of each head, with the mean
// taken off and the biased variance, no bias. Source: xLSTM-large, multi-head norm and output gate.
struct HeadNormGateArgs {
  int rows;
  int H;
  int DV;
  float eps;
  int o_stride;    // floats from a row of o to the next
  const float* h;  // (rows, H, DV)
  const float* o;  // (rows, H, DV) output gate pre-activation
  const float* w;  // (H, DV)
  float* y;        // (rows, H, DV); may be h
  // (rows, H, DV) instead of y, or null; where this backend's linear op takes bf16
  uint16_t* y_bf16 = nullptr;
};

struct HeadNormGateKernel {
  static constexpr const char* kName = "head_norm_gate";
  Op<HeadNormGateArgs> head_norm_gate;
  static constexpr auto kOp = &HeadNormGateKernel::head_norm_gate;
};

}  // namespace recurve
