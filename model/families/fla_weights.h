#pragma once
#include <string>
#include <utility>
#include <vector>

#include "model/layers/feed_forward.h"
#include "model/weights/checkpoint.h"
#include "model/weights/config_reader.h"

// What the families of flash-linear-attention have in common in their configs and files.
namespace recurve::fla {

// fla writes sizes as int(width * factor).
int64_t scaled(int64_t width, double factor);

// intermediate_size, or what modules/mlp.py makes of hidden_ratio.
int64_t read_ffn_size(ConfigReader& read, int64_t D, int64_t default_ratio);

// How others compute it, and of training; nothing of the function.
void ignore_ways(ConfigReader& read);

// The kernels of the short convolutions of q, k and v, (channels, width) one below the other.
// parts: name and channels.
VectorWeights load_convolution(Checkpoint& checkpoint, Backend& backend,
                               const std::vector<std::pair<std::string, int64_t>>& parts,
                               int64_t width);

// prefix: of the block's tensors, "model.layers.0.".
FeedForward load_ffn(Checkpoint& checkpoint, Backend& backend, const std::string& prefix, int64_t D,
                     int64_t F, const WeightFormats& formats);

}  // namespace recurve::fla
