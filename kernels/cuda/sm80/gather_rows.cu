#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256;

// One block a row.
__global__ void __launch_bounds__(kThreads) gather_rows_kernel(GatherRowsArgs args) {
  const int64_t row = blockIdx.x, D = args.D;
  const int64_t from = args.index[row] * D;
#pragma unroll 4
  for (int64_t d = threadIdx.x; d < D; d += kThreads) args.y[row * D + d] = args.x[from + d];
}

}  // namespace

void gather_rows(const GatherRowsArgs& args, Stream& stream) {
  if (args.count == 0) return;
  gather_rows_kernel<<<args.count, kThreads, 0, use(stream)>>>(args);
  expect_launched("gather_rows");
}

}  // namespace recurve::cuda::sm80
