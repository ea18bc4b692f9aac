#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/sm80/activate.cuh"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 128;

// One block a head of a row. A thread reads and writes the same values, so y may be x.
__global__ void __launch_bounds__(kThreads) head_rms_norm_kernel(HeadRmsNormArgs args) {
  const int64_t row = blockIdx.x / args.H, head = blockIdx.x % args.H;
  const int DV = args.DV;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * DV;
  const float* gate =
      args.gate == nullptr ? nullptr : args.gate + row * args.gate_stride + head * DV;
  float sum = 0;
#pragma unroll 4
  for (int d = threadIdx.x; d < DV; d += kThreads) sum = fmaf(args.x[at + d], args.x[at + d], sum);
  sum = block_sum<kThreads>(sum);
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(DV) + args.eps);
#pragma unroll 4
  for (int d = threadIdx.x; d < DV; d += kThreads) {
    float y = args.x[at + d] * scale;
    if (args.w != nullptr) y *= args.w[d];
    if (gate != nullptr) y *= silu(gate[d]);
    args.y[at + d] = y;
  }
}

}  // namespace

void head_rms_norm(const HeadRmsNormArgs& args, Stream& stream) {
  if (args.rows == 0) return;
  head_rms_norm_kernel<<<args.rows * args.H, kThreads, 0, use(stream)>>>(args);
  expect_launched("head_rms_norm");
}

}  // namespace recurve::cuda::sm80
