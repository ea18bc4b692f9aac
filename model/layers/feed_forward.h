#pragma once
#include "model/layers/token_weights.h"

namespace recurve {

// A feed-forward layer over y = RMSNorm(x): x += Wdown( silu(Wgate y) * (Wup y) ), or without a
// gate x += Wdown( max(Wup y, 0)^2 ).
struct FeedForward {
  VectorWeights norm;  // (D)
  LinearWeights up;    // (2 F, D): gate rows, then up rows; or (F, D) without a gate
  LinearWeights down;  // (D, F)
  bool gated = true;

  // Of a row of scratch.
  static int64_t hidden_width(int64_t F, bool gated) { return gated ? F : 2 * F; }

  Residual::Reader reader() const { return {up.matrix(), &norm}; }
};

void add_to(WeightTally& tally, const FeedForward& ffn);

// hidden: scratch, rows of hidden_width. next: the layer that reads x after it.
void feed_forward(const FeedForward& ffn, float eps, Residual& x, const Residual::Reader& next,
                  float* hidden, const Kernels& kernels, Stream& stream);

}  // namespace recurve
