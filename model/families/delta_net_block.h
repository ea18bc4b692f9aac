#pragma once
#include <string>

#include "model/families/delta_net_config.h"
#include "model/layers/gated_ffn.h"
#include "model/layers/token_weights.h"

namespace recurve::delta_net {

struct Block {
  VectorWeights norm;        // (D)
  LinearWeights projection;  // (projected, D)
  VectorWeights conv;        // (mixed, width)
  VectorWeights A;           // (H) -exp(A_log), of gated ones
  VectorWeights dt_bias;     // (H) the same
  VectorWeights out_norm;    // (DV)
  LinearWeights out;         // (D, H DV)
  GatedFfn ffn;

  Residual::Reader reader() const { return {projection.matrix(), &norm}; }
};

// prefix: of the block's tensors, "model.layers.0.".
Block load_block(const Config& config, Checkpoint& checkpoint, Backend& backend,
                 const std::string& prefix, const WeightFormats& formats);

void add_to(WeightTally& tally, const Block& block);

}  // namespace recurve::delta_net
