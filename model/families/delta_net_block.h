#pragma once
#include <string>

#include "model/families/delta_net_config.h"
#include "model/layers/feed_forward.h"
#include "model/layers/token_weights.h"

namespace recurve::delta_net {

struct Block {
  DeltaMixerWeights mixer;
  FeedForward ffn;

  Residual::Reader reader() const { return mixer.reader(); }
};

// prefix: of the block's tensors, "model.layers.0.".
Block load_block(const Config& config, Checkpoint& checkpoint, Backend& backend,
                 const std::string& prefix, const WeightFormats& formats);

}  // namespace recurve::delta_net
