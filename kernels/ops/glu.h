#pragma once
#include "kernels/ops/activation.h"
#include "kernels/ops/op.h"

namespace recurve {

// y = f(gate) * up, gate and up being the halves of a row of the fused projection. Where f is silu
// the linear op does it too.
// Source: Shazeer 2020, eq. 6.
struct GluArgs {
  int rows;
  int F;  // width of the feed-forward layer
  Activation f;
  const float* gate_up;  // (rows, 2, F): gate, then up
  float* y;              // (rows, F); does not overlap gate_up
};

struct GluKernel {
  static constexpr const char* kName = "glu";
  Op<GluArgs> glu;
  static constexpr auto kOp = &GluKernel::glu;
};

}  // namespace recurve
