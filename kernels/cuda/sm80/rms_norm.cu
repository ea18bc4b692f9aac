#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

// One block a row. Its size follows from the width alone, so that a row is summed in one order
// whatever the batch.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(RmsNormArgs args) {
  const float* x = args.x + static_cast<int64_t>(blockIdx.x) * args.D;
  float* y = args.y + static_cast<int64_t>(blockIdx.x) * args.D;
  float sum = 0;
#pragma unroll 4
  for (int d = threadIdx.x; d < args.D; d += kThreads) sum = fmaf(x[d], x[d], sum);
  sum = block_sum<kThreads>(sum);
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(args.D) + args.eps);
#pragma unroll 4
  for (int d = threadIdx.x; d < args.D; d += kThreads) y[d] = x[d] * scale * args.w[d];
}

}  // namespace

void rms_norm(const RmsNormArgs& args, Stream& stream) {
  if (args.rows == 0) return;
  if (args.D <= 1024) {
    rms_norm_kernel<256><<<args.rows, 256, 0, use(stream)>>>(args);
  } else {
    rms_norm_kernel<1024><<<args.rows, 1024, 0, use(stream)>>>(args);
  }
  expect_launched("rms_norm");
}

}  // namespace recurve::cuda::sm80
