#pragma once
#include "kernels/cuda/common/math.cuh"
#include "kernels/ops/head_norm_gate.h"

namespace recurve::cuda::sm80 {

constexpr int kHeadNormThreads = 256;

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

  float sum = 0;
  for_each([&](int, const Value& v) { sum += v.h; });
  const float mean = block_sum<kHeadNormThreads>(sum) / static_cast<float>(DV);
  float squares = 0;
  for_each([&](int, const Value& v) { squares = fmaf(v.h - mean, v.h - mean, squares); });
  squares = block_sum<kHeadNormThreads>(squares);
  const float scale = norm_scale(squares, DV, args.eps);
  for_each([&](int d, const Value& v) {
    const float y = sigmoid(v.o) * ((v.h - mean) * scale * v.w);
    if (args.y_bf16 != nullptr) {
      args.y_bf16[at + d] = static_cast<uint16_t>(round_bf16(y, 0));
    } else {
      args.y[at + d] = y;
    }
  });
}

}  // namespace recurve::cuda::sm80
