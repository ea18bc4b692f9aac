#pragma once
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/vector.cuh"
#include "kernels/ops/head_norm_gate.h"

namespace recurve::cuda::sm80 {

constexpr int kHeadNormThreads = 256;

struct HeadNorm {
  float mean, scale;
};
// Finds the norm of the DV values of a head. A block of kHeadNormThreads calls it, and each thread
// has the value of its number and every kHeadNormThreads-th after it: for_each(visit) calls
// visit(value) for each of these in turn.
template <typename ForEach>
__device__ HeadNorm head_norm(int DV, float eps, ForEach for_each) {
  float sum = 0;
  for_each([&](float h) { sum += h; });
  const float mean = block_sum<kHeadNormThreads>(sum) / static_cast<float>(DV);
  float squares = 0;
  for_each([&](float h) { squares = fmaf(h - mean, h - mean, squares); });
  squares = block_sum<kHeadNormThreads>(squares);
  return {mean, norm_scale(squares, DV, eps)};
}

// One of the values, normed and gated. at: its place in y.
__device__ inline void put_gated(const HeadNormGateArgs& args, int64_t at, const HeadNorm& norm,
                                 float h, float o, float w) {
  const float y = sigmoid(o) * ((h - norm.mean) * norm.scale * w);
  put(args.y, args.y_bf16, at, y);
}

// One head of one row, by a block of kHeadNormThreads, of h that other blocks may have written just
// now. A thread reads and writes the same values, so y may be h.
__device__ inline void norm_and_gate(const HeadNormGateArgs& args, int64_t row, int64_t head) {
  constexpr int kHeld = 2;  // values that a thread keeps between the passes, with o and w
  const int DV = args.DV;
  const int64_t at = (row * args.H + head) * DV;
  const float* h = args.h + at;
  const float* o = args.o + row * args.o_stride + head * DV;
  const float* w = args.w + head * DV;
  struct Value {
    float h, o, w;
  };
  const auto value_at = [&](int d) { return Value{__ldcg(h + d), o[d], w[d]}; };
  Value held[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int d = threadIdx.x + j * kHeadNormThreads;
    held[j] = d < DV ? value_at(d) : Value{};
  }
  // Calls visit(d, value) for each of this thread.
  const auto for_each = [&](auto visit) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int d = threadIdx.x + j * kHeadNormThreads;
      if (d < DV) visit(d, held[j]);
    }
    for (int d = threadIdx.x + kHeld * kHeadNormThreads; d < DV; d += kHeadNormThreads) {
      visit(d, value_at(d));
    }
  };

  const HeadNorm norm = head_norm(
      DV, args.eps, [&](auto visit) { for_each([&](int, const Value& v) { visit(v.h); }); });
  for_each([&](int d, const Value& v) { put_gated(args, at + d, norm, v.h, v.o, v.w); });
}

}  // namespace recurve::cuda::sm80
