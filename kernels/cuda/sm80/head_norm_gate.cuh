#pragma once
#include "kernels/cuda/common/math.cuh"
#include "kernels/ops/head_norm_gate.h"

namespace recurve::cuda::sm80 {

constexpr int kHeadNormThreads = 256;

// One head of one row, by a block of kHeadNormThreads, of h that other blocks may have written just
// now. A thread reads and writes the same values, so y may be h.
__device__ inline void norm_and_gate(const HeadNormGateArgs& args, int64_t row, int64_t head) {
  constexpr int kHeld = 4;  // values that a thread keeps between the passes
  const int DV = args.DV;
  const int64_t at = (row * args.H + head) * DV;
  const float* h = args.h + at;
  const float* o = args.o + row * args.o_stride + head * DV;
  const float* w = args.w + head * DV;
  float held[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int d = threadIdx.x + j * kHeadNormThreads;
    held[j] = d < DV ? __ldcg(h + d) : 0;
  }
  // Calls visit(d, h[d]) for each value of this thread.
  const auto for_each = [&](auto visit) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int d = threadIdx.x + j * kHeadNormThreads;
      if (d < DV) visit(d, held[j]);
    }
    for (int d = threadIdx.x + kHeld * kHeadNormThreads; d < DV; d += kHeadNormThreads) {
      visit(d, __ldcg(h + d));
    }
  };

  float sum = 0;
  for_each([&](int, float value) { sum += value; });
  const float mean = block_sum<kHeadNormThreads>(sum) / static_cast<float>(DV);
  float squares = 0;
  for_each([&](int, float value) { squares = fmaf(value - mean, value - mean, squares); });
  squares = block_sum<kHeadNormThreads>(squares);
  const float scale = norm_scale(squares, DV, args.eps);
  for_each([&](int d, float value) {
    const float y = sigmoid(o[d]) * ((value - mean) * scale * w[d]);
    if (args.y_bf16 != nullptr) {
      args.y_bf16[at + d] = static_cast<uint16_t>(round_bf16(y, 0));
    } else {
      args.y[at + d] = y;
    }
  });
}

}  // namespace recurve::cuda::sm80
