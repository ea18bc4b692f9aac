#pragma once
#include "kernels/cuda/common/math.cuh"
#include "kernels/ops/rwkv7_gate.h"

// The gate before RWKV-7's recurrence, channel by channel.
namespace recurve::cuda::sm80 {

constexpr float kFastestDecay = 0.60653066f;  // exp(-1/2)
constexpr float kShortestKey = 1e-12f;        // that is normalised

// What a channel of a row is made from.
struct GateChannel {
  float w, a, k, v, k_k, k_a, v_first, m;
};
__device__ inline GateChannel gate_channel(const Rwkv7GateArgs& a, int64_t at, int d) {
  GateChannel c = {a.w[at], a.a[at], a.k[at], a.v[at], a.k_k[d], a.k_a[d], 0, 0};
  if (a.m != nullptr) {
    c.v_first = a.v_first[at];
    c.m = a.m[at];
  }
  return c;
}

// The length of a head's key: squares are those of the lane's channels. All lanes.
__device__ inline float key_length(float squares) {
  return max_of(sqrtf(warp_sum(squares)), kShortestKey);
}

struct Gated {
  float kk, lw, alpha, k, v;
};
// length: of the head's key. mixes: whether there is m.
__device__ inline Gated gate(const GateChannel& c, bool mixes, float length) {
  const float alpha = sigmoid(c.a);
  return {.kk = c.k * c.k_k / length,
          .lw = -kFastestDecay * sigmoid(c.w),
          .alpha = alpha,
          .k = c.k * fmaf(alpha - 1, c.k_a, 1.0f),
          .v = mixes ? fmaf(c.v_first - c.v, sigmoid(c.m), c.v) : c.v};
}

}  // namespace recurve::cuda::sm80
