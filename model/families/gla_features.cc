#include "model/families/gla_features.h"

namespace recurve::gla_family {
namespace {

// Added to the sum by which linear attention divides queries and keys (fla layers/linear_attn.py).
constexpr float kSumEps = 1e-4f;

// x becomes y: through the linear layer, its activation, the map and the norm, as there are.
void map_heads(const Config& c, const Kernels& kernels, const MapWeights& weights, bool norm,
               int rows, const FeatureScratch& s, float*& x, int& stride, float* y,
               Stream& stream) {
  if (c.map_weights) {
    const int width = static_cast<int>(c.H * c.map_rows());
    kernels.headwise_linear({.rows = rows,
                             .H = static_cast<int>(c.H),
                             .W = weights.W.matrix(),
                             .x_stride = stride,
                             .y_stride = width,
                             .x = x,
                             .y = s.linear,
                             .bias = weights.bias.data()},
                            stream);
    x = s.linear;
    stride = width;
    if (c.activation != Activation::kIdentity) {
      apply(kernels, c.activation, 1, kNoFloor, rows, width, width, x, stream);
    }
  }
  kernels.feature_map({.rows = rows,
                       .H = static_cast<int>(c.H),
                       .D = static_cast<int>(c.DK),
                       .map = c.feature_map,
                       .sum_eps = norm ? kSumEps : 0,
                       .x_stride = stride,
                       .x = x,
                       .y = y},
                      stream);
  x = y;
  stride = static_cast<int>(c.H * c.DM());
}

}  // namespace

void apply(const Kernels& kernels, Activation f, float scale, float floor, int rows, int64_t width,
           int stride, float* x, Stream& stream) {
  kernels.activation({.rows = rows,
                      .width = static_cast<int>(width),
                      .f = f,
                      .scale = scale,
                      .floor = floor,
                      .x_stride = stride,
                      .y_stride = stride,
                      .x = x,
                      .y = x},
                     stream);
}

void spread(const Config& c, const Kernels& kernels, int rows, int64_t width, const float* from,
            int from_stride, float* to, int64_t to_stride, Stream& stream) {
  for (int64_t head = 0; head < c.H; ++head) {
    kernels.activation({.rows = rows,
                        .width = static_cast<int>(width),
                        .f = Activation::kIdentity,
                        .scale = 1,
                        .floor = kNoFloor,
                        .x_stride = from_stride,
                        .y_stride = static_cast<int>(to_stride),
                        .x = from + head / (c.H / c.KV) * width,
                        .y = to + head * width},
                       stream);
  }
}

Mixed share_heads(const Config& c, const Kernels& kernels, int rows, const FeatureScratch& s,
                  const Mixed& in, Stream& stream) {
  const int64_t stride = 2 * c.q() + c.out();
  float *k = s.heads + c.q(), *v = k + c.q();
  kernels.activation({.rows = rows,
                      .width = static_cast<int>(c.q()),
                      .f = Activation::kIdentity,
                      .scale = 1,
                      .floor = kNoFloor,
                      .x_stride = in.q_stride,
                      .y_stride = static_cast<int>(stride),
                      .x = in.q,
                      .y = s.heads},
                     stream);
  spread(c, kernels, rows, c.DK, in.k, in.k_stride, k, stride, stream);
  spread(c, kernels, rows, c.DV, in.v, in.v_stride, v, stride, stream);
  const int all = static_cast<int>(stride);
  return {.q = s.heads, .k = k, .v = v, .q_stride = all, .k_stride = all, .v_stride = all};
}

void map_features(const Config& c, const Kernels& kernels, const Block& block, int rows,
                  const FeatureScratch& s, Mixed& in, Stream& stream) {
  if (c.kind == Kind::kHgrn2) {
    apply(kernels, Activation::kSilu, 1, kNoFloor, rows, c.q(), in.q_stride, in.q, stream);
  } else if (c.activation != Activation::kIdentity && !c.map_weights) {
    apply(kernels, c.activation, 1, kNoFloor, rows, 2 * c.q(), in.q_stride, in.q, stream);
  }
  if (!c.maps_heads()) return;
  const MapWeights& k_weights = c.map_tied ? block.map_q : block.map_k;
  map_heads(c, kernels, block.map_q, c.norm_q, rows, s, in.q, in.q_stride, s.q_mapped, stream);
  map_heads(c, kernels, k_weights, c.norm_k, rows, s, in.k, in.k_stride, s.k_mapped, stream);
}

}  // namespace recurve::gla_family
