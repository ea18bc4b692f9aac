#pragma once
#include "kernels/cuda/sm80/quick_gates.cuh"
#include "kernels/ops/rnn.h"

// What the kernels of recurrent cells share.
namespace recurve::cuda::sm80 {

constexpr int kMostGates = 4;

// The number of gates, as gates_of() of the cell has it, which is for the host.
__device__ inline int gates_at(const RnnArgs& a) {
  return static_cast<int>(a.R.N / (static_cast<int64_t>(a.H) * a.DH));
}

// Like std::min(a, b), it keeps a where one of them is NaN.
__device__ inline float min_of(float a, float b) { return b < a ? b : a; }

// The state of one channel in addition to h.
struct RnnChannel {
  float c, n, m;
};

__device__ inline RnnChannel channel_at(const RnnArgs& a, int64_t at) {
  return {a.c == nullptr ? 0 : a.c[at], a.n == nullptr ? 0 : a.n[at], a.m == nullptr ? 0 : a.m[at]};
}
__device__ inline void put_channel(const RnnArgs& a, int64_t at, const RnnChannel& s) {
  if (a.c != nullptr) a.c[at] = s.c;
  if (a.n != nullptr) a.n[at] = s.n;
  if (a.m != nullptr) a.m[at] = s.m;
}

// h' of one channel. x, s: (gates), from the input and from the state, bias included. Products and
// sums are named, as several kernels must round them alike.
__device__ inline float next_h(const RnnArgs& a, const float* x, const float* s, float h,
                               RnnChannel& state) {
  const auto u = [&](int gate) { return x[gate] + s[gate]; };
  switch (a.cell) {
    case RnnCell::kElman:
      return quick_tanh(u(0));
    case RnnCell::kLstm: {
      const float in = __fmul_rn(quick_sigmoid(u(0)), quick_tanh(u(2)));
      state.c = __fmaf_rn(quick_sigmoid(u(1)), state.c, in);
      return __fmul_rn(quick_sigmoid(u(3)), quick_tanh(state.c));
    }
    case RnnCell::kGru:
    case RnnCell::kFlashGru: {
      const float candidate = a.cell == RnnCell::kGru ? s[2] : quick_tanh(s[2]);
      const float z = quick_sigmoid(u(1));
      const float n = quick_tanh(__fmaf_rn(quick_sigmoid(u(0)), candidate, x[2]));
      return __fmaf_rn(1 - z, n, __fmul_rn(z, h));
    }
    case RnnCell::kSlstm: {
      const float i = u(0), l = log_sigmoid(u(1)) + state.m;
      const float m = state.n == 0 ? i : max_of(l, i);
      const float I = min_of(expf(i - m), 1.0f), F = min_of(expf(l - m), 1.0f);
      state.m = m;
      state.c = __fmaf_rn(F, state.c, __fmul_rn(I, quick_tanh(u(2))));
      state.n = max_of(__fmaf_rn(F, state.n, I), a.n_min);
      return __fdiv_rn(__fmul_rn(quick_sigmoid(u(3)), state.c), state.n);
    }
  }
  return 0;
}

// Element `index` of R.
template <typename Weight>
__device__ float recurrent_weight(const RnnArgs& a, int64_t index) {
  const Weight value = static_cast<const Weight*>(a.R.data)[index];
  if constexpr (sizeof(Weight) == sizeof(float)) {
    return value;
  } else {
    return widen_bf16(value);
  }
}

// Four weights of R from `index` on, zeros beyond `count`. kVector: DH is a multiple of 4.
template <typename Weight, bool kVector>
__device__ inline float4 four_weights(const RnnArgs& a, int64_t index, int count) {
  if (count <= 0) return make_float4(0, 0, 0, 0);
  if constexpr (kVector && sizeof(Weight) == sizeof(float)) {
    return *reinterpret_cast<const float4*>(static_cast<const float*>(a.R.data) + index);
  } else if constexpr (kVector) {
    const uint2 bits =
        *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(a.R.data) + index);
    return make_float4(__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u),
                       __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xffff0000u));
  } else {
    float w[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      w[j] = j < count ? recurrent_weight<Weight>(a, index + j) : 0;
    }
    return make_float4(w[0], w[1], w[2], w[3]);
  }
}

}  // namespace recurve::cuda::sm80
