#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256;

// One block a row.
__global__ void __launch_bounds__(kThreads) embed_kernel(EmbedArgs args) {
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

void embed(const EmbedArgs& args, Stream& stream) {
  if (args.rows == 0) return;
  embed_kernel<<<args.rows, kThreads, 0, use(stream)>>>(args);
  expect_launched("embed");
}

}  // namespace recurve::cuda::sm80
