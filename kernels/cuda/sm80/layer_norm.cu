#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

// One block a group of a row. Its size follows from that of the group alone, so that a row is
// summed in one order whatever the batch. A thread reads and writes the same values, so y may be x
// or the residual.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) layer_norm_kernel(LayerNormArgs args) {
  const int64_t row = blockIdx.x / args.G;
  const int size = args.D / args.G, first = static_cast<int>(blockIdx.x % args.G) * size;
  const int64_t at = row * args.D + first;
  const float* x = args.x + at;
  float sum = 0;
#pragma unroll 4
  for (int d = threadIdx.x; d < size; d += kThreads) sum += x[d];
  const float mean = block_sum<kThreads>(sum) / static_cast<float>(size);
  float squares = 0;
#pragma unroll 4
  for (int d = threadIdx.x; d < size; d += kThreads) {
    squares = fmaf(x[d] - mean, x[d] - mean, squares);
  }
  squares = block_sum<kThreads>(squares);
  const float scale = 1.0f / sqrtf(squares / static_cast<float>(size) + args.eps);
#pragma unroll 4
  for (int d = threadIdx.x; d < size; d += kThreads) {
    const float bias = args.b == nullptr ? 0 : args.b[first + d];
    const float residual = args.residual == nullptr ? 0 : args.residual[at + d];
    args.y[at + d] = (x[d] - mean) * scale * args.w[first + d] + bias + residual;
  }
}

}  // namespace

void layer_norm(const LayerNormArgs& args, Stream& stream) {
  if (args.rows == 0) return;
  const int size = args.D / args.G;
  const int blocks = args.rows * args.G;
  if (size <= 512) {
    layer_norm_kernel<128><<<blocks, 128, 0, use(stream)>>>(args);
  } else if (size <= 2048) {
    layer_norm_kernel<256><<<blocks, 256, 0, use(stream)>>>(args);
  } else {
    layer_norm_kernel<1024><<<blocks, 1024, 0, use(stream)>>>(args);
  }
  expect_launched("layer_norm");
}

}  // namespace recurve::cuda::sm80
