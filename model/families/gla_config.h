#pragma once
#include <cstdint>
#include <string>

#include "kernels/ops/activation.h"
#include "kernels/ops/feature_map.h"
#include "kernels/ops/gla.h"
#include "model/weights/checkpoint.h"

namespace recurve::gla_family {

enum class Kind { kGla, kSimpleGla, kRetnet, kLinearAttention, kHgrn2 };

// The config.json of one of fla's families of one matrix state.
struct Config {
  Kind kind;
  std::string type;  // the model_type
  int64_t D, blocks, H, DK, DV, F, vocab;
  int64_t KV;         // heads of keys and values: each serves H / KV heads of queries
  int64_t gate_rank;  // kGla
  int64_t width;      // of the short convolution; 0: none
  float eps, gate_divisor, gate_floor;
  Activation activation;   // of queries and keys, value by value
  FeatureMap feature_map;  // of linear attention, head by head, after it
  bool map_weights;        // the feature map begins with a linear layer
  bool map_tied;           // one such layer for queries and keys
  bool norm_q, norm_k;     // linear attention: divided by their sum
  bool tied, output_gate, head_norm, normaliser, lower_bound;
  int chunk;
  DType state;  // of S

  int64_t q() const { return H * DK; }
  int64_t k() const { return KV * DK; }
  int64_t v() const { return KV * DV; }
  int64_t out() const { return H * DV; }
  int64_t mixed() const { return q() + k() + v(); }  // what a convolution sees
  // q, k, v, output gate, gates; HGRN2's forget gate has the place of k. The gates are those of the
  // heads (kSimpleGla) or the few values that the log decays are made of (kGla).
  int64_t projected() const { return mixed() + (output_gate ? out() : 0) + gates(); }
  int64_t gates() const {
    if (kind == Kind::kGla) return gate_rank;
    return kind == Kind::kSimpleGla ? H : 0;
  }
  // Rows of the feature map's linear layer, a head.
  int64_t map_rows() const { return feature_map == FeatureMap::kProduct ? 2 * DK : DK; }
  bool maps_heads() const {
    return map_weights || feature_map != FeatureMap::kNone || norm_q || norm_k;
  }
  int64_t DM() const { return DK * mapped_width(feature_map); }  // keys of the state, a head
  GlaDecay decay() const {
    if (kind == Kind::kGla || kind == Kind::kHgrn2) return GlaDecay::kChannel;
    if (kind == Kind::kSimpleGla) return GlaDecay::kToken;
    return kind == Kind::kRetnet ? GlaDecay::kHead : GlaDecay::kNone;
  }
};

// Throws std::runtime_error with one sentence: file, key, wanted, found.
Config read_config(const Checkpoint& checkpoint);

}  // namespace recurve::gla_family
