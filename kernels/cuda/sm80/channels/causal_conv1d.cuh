#pragma once
#include "kernels/cuda/sm80/capabilities.h"
#include "kernels/cuda/sm80/quick_silu.cuh"
#include "kernels/cuda/sm80/rows/activate.cuh"
#include "kernels/cuda/sm80/vector.cuh"
#include "kernels/ops/causal_conv1d.h"

namespace recurve::cuda::sm80 {

// Four channels side by side, of width 4, with the rows before the current one.
struct FourChannels {
  static constexpr int kWidth = kWidthOfFourChannels, kPast = kWidth - 1;
  float4 w[4], bias;
  float past[4][kPast];  // of each channel, oldest first

  // channel: the first; its weights and nothing of the past.
  __device__ void load_weights(const CausalConv1dArgs& a, int channel) {
    const auto four = [](const float* from) { return *reinterpret_cast<const float4*>(from); };
#pragma unroll
    for (int c = 0; c < 4; ++c) w[c] = four(a.w + static_cast<int64_t>(channel + c) * kWidth);
    bias = a.bias == nullptr ? make_float4(0, 0, 0, 0) : four(a.bias + channel);
  }

  // flat: as it is in the state.
  __device__ void take_past(const float4 (&flat)[kPast]) {
    const auto* values = reinterpret_cast<const float*>(flat);
#pragma unroll
    for (int i = 0; i < 4 * kPast; ++i) past[i / kPast][i % kPast] = values[i];
  }
  __device__ void give_past(float4 (&flat)[kPast]) const {
    auto* values = reinterpret_cast<float*>(flat);
#pragma unroll
    for (int i = 0; i < 4 * kPast; ++i) values[i] = past[i / kPast][i % kPast];
  }

  // The next row: its output.
  __device__ float4 advance(const float4& x, bool with_silu) {
    return make_float4(advance(0, x.x, bias.x, with_silu), advance(1, x.y, bias.y, with_silu),
                       advance(2, x.z, bias.z, with_silu), advance(3, x.w, bias.w, with_silu));
  }

 private:
  __device__ float advance(int c, float x, float b, bool with_silu) {
    float sum = __fmaf_rn(w[c].x, past[c][0], b);
    sum = __fmaf_rn(w[c].y, past[c][1], sum);
    sum = __fmaf_rn(w[c].z, past[c][2], sum);
    sum = __fmaf_rn(w[c].w, x, sum);
    past[c][0] = past[c][1];
    past[c][1] = past[c][2];
    past[c][2] = x;
    return with_silu ? quick_silu(sum) : sum;
  }
};

// The outputs of four channels from d on.
__device__ inline void put_four(const CausalConv1dArgs& a, int64_t row, int d, const float4& y) {
  const int64_t at = row * a.D + d;
  *reinterpret_cast<float4*>(a.y + at) = y;
  if (a.y_bf16 != nullptr) {
    *reinterpret_cast<uint2*>(a.y_bf16 + at) =
        make_uint2(round_bf16(y.x, y.y), round_bf16(y.z, y.w));
  }
}

}  // namespace recurve::cuda::sm80
