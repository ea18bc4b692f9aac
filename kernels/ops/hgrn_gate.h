#pragma once
#include "kernels/ops/op.h"

namespace recurve {

// The gate of HGRN2 with a lower bound b in [0, 1) for each channel:
//   decay = b + (1 - b) sigmoid(f),  g = log(decay),  k = 1 - decay
// computed so that neither is a difference of nearly equal numbers: k = (1 - b) sigmoid(-f), and g
// = logsigmoid(f) where b is 0, log1p(-k) where f is positive.
// Source: Qin et al. 2024 (HGRN2), sec. 3; fla layers/hgrn2.py.
struct HgrnGateArgs {
  int rows;
  int D;               // channels
  int f_stride;        // floats from a row of f to the next
  const float* f;      // (rows, D) forget gate pre-activation
  const float* bound;  // (D) or null: zeros
  float* g;            // (rows, D) log of the decay; does not overlap f
  float* k;            // (rows, D); does not overlap f
};

struct HgrnGateKernel {
  static constexpr const char* kName = "hgrn_gate";
  Op<HgrnGateArgs> hgrn_gate;
  static constexpr auto kOp = &HgrnGateKernel::hgrn_gate;
};

}  // namespace recurve
