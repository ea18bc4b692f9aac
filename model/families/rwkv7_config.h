#pragma once
#include <string>

#include "model/weights/checkpoint.h"

namespace recurve::rwkv7 {

// The sizes of the low-rank matrices of one layer, between D and D.
struct Ranks {
  int64_t w;  // of the decay
  int64_t a;  // of the learning rate
  int64_t v;  // of the values' mix; the first layer has none
  int64_t g;  // of the gate
};

struct Config {
  int64_t D;  // width
  int64_t blocks;
  int64_t vocab;
  int64_t H;  // heads
  int64_t N;  // channels of a head, of keys and of values
  int64_t F;  // width of the feed-forward layer
  float eps;  // norm_eps, of the layer norms
  bool tied;
  int chunk;
  DType state;  // of S
  Ranks ranks;  // those of the config; the shapes of tensors take precedence (ranks_of)

  // Of the norm behind the recurrence: 64e-5 in every checkpoint of BlinkDL.
  float head_eps() const { return static_cast<float>(N) * eps; }
};

// Throws std::runtime_error with one sentence for what does not fit or is not supported.
Config read_config(const Checkpoint& checkpoint);

// The ranks of a layer: rows of its matrices as they are stored, as configs are often without them
// or wrong; the config's where there is no such tensor. attn: its prefix, "model.layers.0.attn."
Ranks ranks_of(const Config& config, const Checkpoint& checkpoint, const std::string& attn);

}  // namespace recurve::rwkv7
