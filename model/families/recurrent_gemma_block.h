#pragma once
#include <string>

#include "model/families/recurrent_gemma_config.h"
#include "model/layers/host_matrix.h"
#include "model/layers/residual.h"
#include "model/layers/token_weights.h"

namespace recurve::recurrent_gemma {

// A gate of the recurrence: a matrix for each of H parts of the channels.
struct Gate {
  HostMatrix W;     // (lru, lru / H), rows of outputs
  VectorWeights b;  // (lru)
};

struct Block {
  bool attends;
  VectorWeights norm;       // (D)
  LinearWeights in;         // recurrence: (2 lru, D), x then the other branch; attention: (qkv, D)
  VectorWeights conv;       // (lru, width), of the recurrence, and so the following
  VectorWeights conv_bias;  // (lru)
  Gate input, recurrence;
  VectorWeights rate;      // (lru) -8 softplus of the parameter
  LinearWeights out;       // (D, lru) or (D, H head)
  VectorWeights ffn_norm;  // (D)
  LinearWeights gate_up;   // (2 F, D)
  LinearWeights down;      // (D, F)

  Residual::Reader reader() const { return {in.matrix(), &norm}; }
  Residual::Reader ffn_reader() const { return {gate_up.matrix(), &ffn_norm}; }
};

// prefix: of the block's tensors, "model.layers.0.".
Block load_block(const Config& config, Checkpoint& checkpoint, Backend& backend,
                 const std::string& prefix, bool attends, const WeightFormats& formats);

void add_to(WeightTally& tally, const Block& block);

}  // namespace recurve::recurrent_gemma
