#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/rows/layer_norm.cuh"
#include "kernels/cuda/sm80/vector.cuh"

namespace recurve::cuda::sm80 {
namespace {

// One block a group of a row. Its size follows from that of the group alone, so that a row is
// summed in one order whatever the batch. A thread reads and writes the same values, so y may be x
// or the residual.
//
// All values are in registers.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) held_kernel(LayerNormArgs args) {
  using Norm = HeldNorm<kThreads, kHeldOfNorm>;
  let_next_start();
  const int64_t row = blockIdx.x / args.G;
  const int size = args.D / args.G, first = static_cast<int>(blockIdx.x % args.G) * size;
  const int64_t at = row * args.D + first;
  float x[kHeldOfNorm];
  Norm norm;
  norm.load(args.w + first, args.b == nullptr ? nullptr : args.b + first, size);
  wait_for_previous();
  Norm::for_each(size, [&](int j, int d) { x[j] = args.x[at + d]; });
  if (args.sum != nullptr) {
    Norm::for_each(size, [&](int j, int d) { x[j] += args.sum[at + d]; });
    Norm::for_each(size, [&](int j, int d) { args.sum[at + d] = x[j]; });
  }
  norm.apply(x, size, args.eps);
  Norm::for_each(size, [&](int j, int d) {
    if (args.residual != nullptr) x[j] += args.residual[at + d];
    put(args.y, args.y_bf16, at + d, x[j]);
  });
}

// Groups of any size.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) any_kernel(LayerNormArgs args) {
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x / args.G;
  const int size = args.D / args.G, first = static_cast<int>(blockIdx.x % args.G) * size;
  const int64_t at = row * args.D + first;
  const float* x = args.x + at;
  if (args.sum != nullptr) {
    float* total = args.sum + at;
#pragma unroll 4
    for (int d = threadIdx.x; d < size; d += kThreads) total[d] += x[d];
    x = total;
  }
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
  const float scale = norm_scale(squares, size, args.eps);
#pragma unroll 4
  for (int d = threadIdx.x; d < size; d += kThreads) {
    const float bias = args.b == nullptr ? 0 : args.b[first + d];
    const float residual = args.residual == nullptr ? 0 : args.residual[at + d];
    put(args.y, args.y_bf16, at + d, (x[d] - mean) * scale * args.w[first + d] + bias + residual);
  }
}

}  // namespace

void run(const LayerNormArgs& args, Stream& stream) {
  if (args.rows == 0) return;
  const int size = args.D / args.G;
  const auto launch = [&](auto kernel, unsigned threads) {
    launch_early(stream, "layer_norm", kernel,
                 {.grid = static_cast<unsigned>(args.rows * args.G), .threads = threads}, args);
  };
  if (size > kMostHeld) return launch(any_kernel<1024>, 1024);
  with_norm_threads(size, [&]<int kThreads>() { launch(held_kernel<kThreads>, kThreads); });
}

}  // namespace recurve::cuda::sm80
