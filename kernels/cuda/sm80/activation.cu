#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/activate.cuh"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256;

// Blocks: rows x pieces of kThreads of the width.
__global__ void __launch_bounds__(kThreads) activation_kernel(ActivationArgs args, int pieces) {
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x / pieces;
  const int d = static_cast<int>(blockIdx.x % pieces) * kThreads + static_cast<int>(threadIdx.x);
  if (d >= args.width) return;
  const float value = args.scale * activate(args.f, args.x[row * args.x_stride + d]);
  args.y[row * args.y_stride + d] = value < args.floor ? args.floor : value;
}

}  // namespace

void run(const ActivationArgs& args, Stream& stream) {
  if (args.rows == 0) return;
  const int pieces = ceil_div(args.width, kThreads);
  launch_early(stream, "activation", activation_kernel,
               {.grid = static_cast<unsigned>(args.rows * pieces), .threads = kThreads}, args,
               pieces);
}

}  // namespace recurve::cuda::sm80
