#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) soft_cap_kernel(SoftCapArgs args) {
  let_next_start();
  wait_for_previous();
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (j < args.count) args.x[j] = cuda::soft_cap(args.x[j], args.cap);
}

}  // namespace

void run(const SoftCapArgs& args, Stream& stream) {
  if (args.count == 0) return;
  const auto blocks = static_cast<unsigned>(ceil_div(args.count, kThreads));
  launch_early(stream, "soft_cap", soft_cap_kernel,
               {.grid = static_cast<unsigned>(blocks), .threads = kThreads}, args);
}

}  // namespace recurve::cuda::sm80
