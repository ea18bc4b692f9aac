#pragma once
#include "kernels/arena.h"
#include "model/weights/linear_weights.h"

namespace recurve {

// The feed-forward half of a block: x += Wdown( silu(Wgate y) * (Wup y) ), y = RMSNorm(x).
struct GatedFfn {
  VectorWeights norm;     // (D)
  LinearWeights gate_up;  // (2 F, D): gate rows, then up rows
  LinearWeights down;     // (D, F)
};

// hidden: scratch.
void gated_ffn(const GatedFfn& ffn, float eps, int rows, float* x /* (rows, D) */,
               float* hidden /* (rows, F) */, const Kernels& kernels, Stream& stream);

}  // namespace recurve
