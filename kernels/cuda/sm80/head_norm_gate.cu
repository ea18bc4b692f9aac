#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 128;

// One block a head of a row. A thread reads and writes the same values, so y may be h.
__global__ void __launch_bounds__(kThreads) head_norm_gate_kernel(HeadNormGateArgs args) {
  const int64_t row = blockIdx.x / args.H, head = blockIdx.x % args.H;
  const int DV = args.DV;
  const float* h = args.h + blockIdx.x * static_cast<int64_t>(DV);
  const float* o = args.o + row * args.o_stride + head * DV;
  const float* w = args.w + head * DV;
  float* y = args.y + blockIdx.x * static_cast<int64_t>(DV);

  float sum = 0;
#pragma unroll 4
  for (int d = threadIdx.x; d < DV; d += kThreads) sum += h[d];
  const float mean = block_sum<kThreads>(sum) / static_cast<float>(DV);
  float squares = 0;
#pragma unroll 4
  for (int d = threadIdx.x; d < DV; d += kThreads) {
    squares = fmaf(h[d] - mean, h[d] - mean, squares);
  }
  squares = block_sum<kThreads>(squares);
  const float scale = 1.0f / sqrtf(squares / static_cast<float>(DV) + args.eps);
#pragma unroll 4
  for (int d = threadIdx.x; d < DV; d += kThreads) {
    y[d] = sigmoid(o[d]) * ((h[d] - mean) * scale * w[d]);
  }
}

}  // namespace

void head_norm_gate(const HeadNormGateArgs& args, Stream& stream) {
  if (args.rows == 0) return;
  head_norm_gate_kernel<<<args.rows * args.H, kThreads, 0, use(stream)>>>(args);
  expect_launched("head_norm_gate");
}

}  // namespace recurve::cuda::sm80
