#pragma once
#include "kernels/cuda/common/math.cuh"
#include "kernels/ops/head_norm_gate.h"

namespace recurve::cuda::sm80 {

constexpr int kHeadNormThreads = 128;

// One head of one row, by a block of kHeadNormThreads. A thread reads and writes the same values,
// so y may be h.
__device__ inline void norm_and_gate(const HeadNormGateArgs& args, int64_t row, int64_t head) {
  const int DV = args.DV;
  const int64_t at = (row * args.H + head) * DV;
  const float* h = args.h + at;
  const float* o = args.o + row * args.o_stride + head * DV;
  const float* w = args.w + head * DV;
  float* y = args.y + at;

  float sum = 0;
#pragma unroll 4
  for (int d = threadIdx.x; d < DV; d += kHeadNormThreads) sum += h[d];
  const float mean = block_sum<kHeadNormThreads>(sum) / static_cast<float>(DV);
  float squares = 0;
#pragma unroll 4
  for (int d = threadIdx.x; d < DV; d += kHeadNormThreads) {
    squares = fmaf(h[d] - mean, h[d] - mean, squares);
  }
  squares = block_sum<kHeadNormThreads>(squares);
  const float scale = 1.0f / sqrtf(squares / static_cast<float>(DV) + args.eps);
#pragma unroll 4
  for (int d = threadIdx.x; d < DV; d += kHeadNormThreads) {
    y[d] = sigmoid(o[d]) * ((h[d] - mean) * scale * w[d]);
  }
}

}  // namespace recurve::cuda::sm80
