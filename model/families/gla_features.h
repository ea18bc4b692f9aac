#pragma once
#include <limits>

#include "kernels/kernels.h"
#include "model/families/gla_block.h"

namespace recurve::gla_family {

constexpr float kNoFloor = -std::numeric_limits<float>::infinity();

// Queries, keys and values of a step, on their way to the recurrence.
struct Mixed {
  float *q, *k, *v;
  int q_stride, k_stride, v_stride;
};

// Activations of one step; null where the config has no use for them.
struct FeatureScratch {
  float* heads;     // (rows, 2 H DK + H DV) where KV < H
  float* linear;    // (rows, H map_rows) out of a feature map's linear layer
  float* q_mapped;  // (rows, H DM) out of a feature map of heads
  float* k_mapped;  // (rows, H DM)
};

// x = scale f(x), (rows, width), at least `floor`.
void apply(const Kernels& kernels, Activation f, float scale, float floor, int rows, int64_t width,
           int stride, float* x, Stream& stream);

// Gives each of H heads, in `to`, the `width` values of its part of KV, in `from`.
void spread(const Config& c, const Kernels& kernels, int rows, int64_t width, const float* from,
            int from_stride, float* to, int64_t to_stride, Stream& stream);

// Queries, and keys and values once for each head of queries, in scratch.heads.
Mixed share_heads(const Config& c, const Kernels& kernels, int rows, const FeatureScratch& scratch,
                  const Mixed& in, Stream& stream);

// What is done to queries and keys before they meet. k stands behind q in a row; afterwards they
// may stand elsewhere.
void map_features(const Config& c, const Kernels& kernels, const Block& block, int rows,
                  const FeatureScratch& scratch, Mixed& in, Stream& stream);

}  // namespace recurve::gla_family
