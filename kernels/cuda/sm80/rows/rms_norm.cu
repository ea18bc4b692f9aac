#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

// One block a row. Its size follows from the width alone, so that a row is summed in one order
// whatever the batch.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(RmsNormArgs args) {
  let_next_start();
  wait_for_previous();
  const float* x = args.x + static_cast<int64_t>(blockIdx.x) * args.D;
  float* y = args.y + static_cast<int64_t>(blockIdx.x) * args.D;
  float sum = 0;
#pragma unroll 4
  for (int d = threadIdx.x; d < args.D; d += kThreads) sum = fmaf(x[d], x[d], sum);
  sum = block_sum<kThreads>(sum);
  const float scale = norm_scale(sum, args.D, args.eps);
#pragma unroll 4
  for (int d = threadIdx.x; d < args.D; d += kThreads) y[d] = x[d] * scale * args.w[d];
}

}  // namespace

void run(const RmsNormArgs& args, Stream& stream) {
  if (args.rows == 0) return;
  if (args.D <= 1024) {
    launch_early(stream, "rms_norm", rms_norm_kernel<256>,
                 {.grid = static_cast<unsigned>(args.rows), .threads = 256}, args);
  } else {
    launch_early(stream, "rms_norm", rms_norm_kernel<1024>,
                 {.grid = static_cast<unsigned>(args.rows), .threads = 1024}, args);
  }
}

}  // namespace recurve::cuda::sm80
