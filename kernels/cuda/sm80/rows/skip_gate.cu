#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/rows/activate.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256;

// Blocks: rows x pieces of kThreads of the width.
__global__ void __launch_bounds__(kThreads) skip_gate_kernel(SkipGateArgs args, int pieces) {
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x / pieces;
  const int d = static_cast<int>(blockIdx.x % pieces) * kThreads + static_cast<int>(threadIdx.x);
  if (d >= args.D) return;
  const int64_t at = row * args.D + d;
  const float sum = args.h[at] + args.skip[d] * args.x[row * args.x_stride + d];
  args.y[at] = sum * silu(args.z[row * args.z_stride + d]);
}

}  // namespace

void run(const SkipGateArgs& args, Stream& stream) {
  if (args.rows == 0) return;
  const int pieces = ceil_div(args.D, kThreads);
  launch_early(stream, "skip_gate", skip_gate_kernel,
               {.grid = static_cast<unsigned>(args.rows * pieces), .threads = kThreads}, args,
               pieces);
}

}  // namespace recurve::cuda::sm80
