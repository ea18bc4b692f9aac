#pragma once
#include <string>
#include <vector>

#include "model/families/gla_config.h"
#include "model/layers/feed_forward.h"
#include "model/layers/host_matrix.h"
#include "model/layers/token_weights.h"

namespace recurve::gla_family {

// The linear layer with which a feature map begins: one for all heads.
struct MapWeights {
  HostMatrix W;        // (H map_rows, DK): the same once for each head, as the op wants it
  VectorWeights bias;  // (H map_rows) the same; empty: none
  int64_t parameters = 0;
};

struct Block {
  VectorWeights norm;        // (D)
  LinearWeights projection;  // (projected, D)
  VectorWeights conv;        // (mixed, width)
  LinearWeights gate_up;     // (KV DK, gate_rank), kGla, with its bias
  MapWeights map_q, map_k;   // where Config::map_weights; map_k is empty where they are tied
  VectorWeights bound;       // (H DK), kHgrn2: lower bounds of the decays; empty: zeros
  VectorWeights out_norm;    // (DV), or (D) of kHgrn2; empty: no norm
  LinearWeights out;         // (D, H DV)
  FeedForward ffn;

  Residual::Reader reader() const { return {projection.matrix(), &norm}; }
};

// prefix: of the block's tensors, "model.layers.0.".
Block load_block(const Config& config, Checkpoint& checkpoint, Backend& backend,
                 const std::string& prefix, const WeightFormats& formats);

// HGRN2's lower bounds of all blocks, from one tensor (blocks, D) of that name.
void load_bounds(const Config& config, Checkpoint& checkpoint, Backend& backend,
                 const std::string& name, std::vector<Block>& blocks);

void add_to(WeightTally& tally, const Block& block);

}  // namespace recurve::gla_family
