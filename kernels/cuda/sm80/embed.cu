#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256;

// One block a row.
__global__ void __launch_bounds__(kThreads) embed_kernel(EmbedArgs args) {
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x, D = args.E.K;
  const int64_t from = args.token[row] * D;
#pragma unroll 4
  for (int64_t d = threadIdx.x; d < D; d += kThreads) {
    args.x[row * D + d] = args.E.dtype == DType::kBF16
                              ? widen_bf16(static_cast<const uint16_t*>(args.E.data)[from + d])
                              : static_cast<const float*>(args.E.data)[from + d];
  }
}

}  // namespace

void run(const EmbedArgs& args, Stream& stream) {
  if (args.rows == 0) return;
  launch_early(stream, "embed", embed_kernel,
               {.grid = static_cast<unsigned>(args.rows), .threads = kThreads}, args);
}

}  // namespace recurve::cuda::sm80
