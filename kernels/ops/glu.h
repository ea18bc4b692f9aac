#pragma once
#include "kernels/ops/activation.h"

namespace recurve {

// y = f(gate) * up, gate and up being the halves of a row of the fused projection: swiglu.h for
// other functions than silu.
// Source: Shazeer 2020, eq. 6.
struct GluArgs {
  int rows;
  int F;  // width of the feed-forward layer
  Activation f;
  const float* gate_up;  // (rows, 2, F): gate, then up
  float* y;              // (rows, F); does not overlap gate_up
};

}  // namespace recurve
