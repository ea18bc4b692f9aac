#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256;

// One block a row.
__global__ void __launch_bounds__(kThreads) gather_rows_kernel(GatherRowsArgs args) {
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x, D = args.D;
  const int64_t from = args.index[row] * D;
#pragma unroll 4
  for (int64_t d = threadIdx.x; d < D; d += kThreads) args.y[row * D + d] = args.x[from + d];
}

}  // namespace

void run(const GatherRowsArgs& args, Stream& stream) {
  if (args.count == 0) return;
  launch_early(stream, "gather_rows", gather_rows_kernel,
               {.grid = static_cast<unsigned>(args.count), .threads = kThreads}, args);
}

}  // namespace recurve::cuda::sm80
