#pragma once
#include <cstdint>

#include "kernels/ops/activation.h"
#include "kernels/ops/op.h"

namespace recurve {

// y = RMSNorm_head(x) * w * f(gate): the norm over the DV values of each head, one weight for all
// heads, eps inside the root; the gate after the norm. Source: Yang et al. 2023 (GLA), sec. 4.3,
// with swish as f; RetNet (Sun et al. 2023), eq. 8. The sigmoid as f is Kimi Linear's (Kimi Team
// 2025), eq. 10.
struct HeadRmsNormArgs {
  int rows;
  int H;
  int DV;
  float eps;
  int gate_stride;    // floats from a row of gate to the next
  const float* x;     // (rows, H, DV)
  const float* w;     // (DV) or null: ones
  const float* gate;  // (rows, H, DV) before f; or null: no gate
  float* y;           // (rows, H, DV); may be x, if that is dense
  // (rows, H, DV) instead of y, or null; where this backend's linear op takes bf16
  uint16_t* y_bf16 = nullptr;
  Activation f = Activation::kSilu;  // or kSigmoid
  int x_stride = 0;                  // floats from a row of x to the next; 0: H head strides
  int x_head_stride = 0;             // floats from a head of x to the next; 0: DV

  // Where a head of x begins.
  int64_t x_at(int64_t row, int64_t head) const {
    const int64_t between = x_head_stride == 0 ? DV : x_head_stride;
    return row * (x_stride == 0 ? H * between : x_stride) + head * between;
  }
};

struct HeadRmsNormKernel {
  static constexpr const char* kName = "head_rms_norm";
  Op<HeadRmsNormArgs> head_rms_norm;
  static constexpr auto kOp = &HeadRmsNormKernel::head_rms_norm;
};

}  // namespace recurve
