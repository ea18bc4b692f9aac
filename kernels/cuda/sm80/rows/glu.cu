#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/rows/activate.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256;

// Blocks: rows x pieces of kThreads of the width.
__global__ void __launch_bounds__(kThreads) glu_kernel(GluArgs args, int pieces) {
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x / pieces, F = args.F;
  const int64_t f = static_cast<int64_t>(blockIdx.x % pieces) * kThreads + threadIdx.x;
  if (f >= F) return;
  const float gate = args.gate_up[row * 2 * F + f], up = args.gate_up[row * 2 * F + F + f];
  args.y[row * F + f] = activate(args.f, gate) * up;
}

}  // namespace

void run(const GluArgs& args, Stream& stream) {
  if (args.rows == 0) return;
  const int pieces = ceil_div(args.F, kThreads);
  launch_early(stream, "glu", glu_kernel,
               {.grid = static_cast<unsigned>(args.rows * pieces), .threads = kThreads}, args,
               pieces);
}

}  // namespace recurve::cuda::sm80
