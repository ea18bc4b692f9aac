#pragma once
#include "kernels/ops/op.h"
#include "kernels/tensor.h"

namespace recurve {

// The log decays of GLA, from a few values of a row: g = max(logsigmoid(W low + bias) scale,
// floor). Source: Yang et al. 2023 (GLA), sec. 4.4, whose temperature is 1 / scale; fla
// layers/gla.py.
struct GlaGateArgs {
  int rows;
  Matrix W;           // (D, R)
  const float* bias;  // (D) or null
  float scale;        // positive
  float floor;        // g is at least this; -infinity: no floor
  int low_stride;     // floats from a row of low to the next
  const float* low;   // (rows, R)
  float* g;           // (rows, D); does not overlap low
};

struct GlaGateKernel {
  static constexpr const char* kName = "gla_gate";
  Op<GlaGateArgs> gla_gate;
  static constexpr auto kOp = &GlaGateKernel::gla_gate;
};

}  // namespace recurve
