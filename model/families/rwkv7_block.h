#pragma once
#include <array>

#include "kernels/ops/token_shift.h"
#include "model/families/rwkv7_config.h"
#include "model/layers/token_weights.h"

namespace recurve::rwkv7 {

struct LayerNorm {
  VectorWeights w;  // (D)
  VectorWeights b;  // (D)
};

// up f(down x) + bias.
struct LowRank {
  LinearWeights down;  // (rank, D)
  LinearWeights up;    // (D, rank), with a bias but for the gate
};

// Who reads the mixes of a layer's token shift, in this order.
enum Reader { kR, kW, kK, kV, kA, kG };

struct Block {
  LayerNorm norm;                        // before the recurrence
  std::vector<VectorWeights> shift;      // the six mixes, (D) each; or one of (6, D)
  std::array<const float*, 6> mu;        // by Reader, (D) each
  LinearWeights r, k, v, out;            // (D, D)
  LowRank decay, rate, value_mix, gate;  // value_mix: empty in the first layer
  VectorWeights k_k, k_a, r_k;           // (D)
  LayerNorm head_norm;                   // of each head
  LayerNorm ffn_norm;
  VectorWeights ffn_mu;     // (D)
  LinearWeights ffn_key;    // (F, D)
  LinearWeights ffn_value;  // (D, F)
};

// prefix: "model.layers.0."
Block load_block(const Config& config, Checkpoint& checkpoint, Backend& backend,
                 const std::string& prefix, bool first, const WeightFormats& formats);

LayerNorm load_norm(Checkpoint& checkpoint, Backend& backend, const std::string& name, int64_t D);

void add_to(WeightTally& tally, const LayerNorm& norm);
void add_to(WeightTally& tally, const Block& block);

}  // namespace recurve::rwkv7
