#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/vector.cuh"

namespace recurve::cuda::sm80 {
namespace {

// One block a group of a row. Its size follows from that of the group alone, so that a row is
// summed in one order whatever the batch. A thread reads and writes the same values, so y may be x
// or the residual.
//
// kHeld: values of a thread, all in registers.
template <int kThreads, int kHeld>
__global__ void __launch_bounds__(kThreads) held_kernel(LayerNormArgs args) {
  let_next_start();
  const int64_t row = blockIdx.x / args.G;
  const int size = args.D / args.G, first = static_cast<int>(blockIdx.x % args.G) * size;
  const int64_t at = row * args.D + first;
  const auto for_each = [&](auto visit) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int d = j * kThreads + static_cast<int>(threadIdx.x);
      if (d < size) visit(j, d);
    }
  };
  float x[kHeld], w[kHeld], bias[kHeld];
  for_each([&](int j, int d) {
    w[j] = args.w[first + d];
    bias[j] = args.b == nullptr ? 0 : args.b[first + d];
  });
  wait_for_previous();
  for_each([&](int j, int d) { x[j] = args.x[at + d]; });
  if (args.sum != nullptr) {
    for_each([&](int j, int d) { x[j] += args.sum[at + d]; });
    for_each([&](int j, int d) { args.sum[at + d] = x[j]; });
  }
  float sum = 0, squares = 0;
  for_each([&](int j, int) { sum += x[j]; });
  const float mean = block_sum<kThreads>(sum) / static_cast<float>(size);
  for_each([&](int j, int) { squares = fmaf(x[j] - mean, x[j] - mean, squares); });
  squares = block_sum<kThreads>(squares);
  const float scale = norm_scale(squares, size, args.eps);
  for_each([&](int j, int d) {
    const float residual = args.residual == nullptr ? 0 : args.residual[at + d];
    put(args.y, args.y_bf16, at + d, (x[j] - mean) * scale * w[j] + bias[j] + residual);
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
  if (size <= 512) {
    launch(held_kernel<128, 4>, 128);
  } else if (size <= 1024) {
    launch(held_kernel<256, 4>, 256);
  } else if (size <= 2048) {
    launch(held_kernel<512, 4>, 512);
  } else if (size <= 4096) {
    launch(held_kernel<1024, 4>, 1024);
  } else {
    launch(any_kernel<1024>, 1024);
  }
}

}  // namespace recurve::cuda::sm80
