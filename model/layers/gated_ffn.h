#pragma once
#include "model/layers/token_weights.h"

namespace recurve {

// The feed-forward half of a block: x += Wdown( silu(Wgate y) * (Wup y) ), y = RMSNorm(x).
struct GatedFfn {
  VectorWeights norm;     // (D)
  LinearWeights gate_up;  // (2 F, D): gate rows, then up rows
  LinearWeights down;     // (D, F)

  Residual::Reader reader() const { return {gate_up.matrix(), &norm}; }
};

void add_to(WeightTally& tally, const GatedFfn& ffn);

// hidden: scratch. next: the layer that reads x after it.
void gated_ffn(const GatedFfn& ffn, float eps, Residual& x, const Residual::Reader& next,
               float* hidden /* (rows, F) */, const Kernels& kernels, Stream& stream);

}  // namespace recurve
