#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) add_kernel(AddArgs args) {
  let_next_start();
  wait_for_previous();
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (j < args.count) args.y[j] = args.a[j] + args.b[j];
}

}  // namespace

void run(const AddArgs& args, Stream& stream) {
  if (args.count == 0) return;
  const auto blocks = static_cast<unsigned>(ceil_div(args.count, kThreads));
  launch_early(stream, "add", add_kernel, {.grid = blocks, .threads = kThreads}, args);
}

}  // namespace recurve::cuda::sm80
