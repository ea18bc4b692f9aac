#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/rows/activate.cuh"
#include "kernels/cuda/sm80/vector.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 128;

constexpr int kHeld = 4;  // values of a thread in registers: where a head has no more

// HeadRmsNormArgs::x_at().
__device__ int64_t start_of(const HeadRmsNormArgs& args, int64_t row, int64_t head) {
  const int64_t between = args.x_head_stride == 0 ? args.DV : args.x_head_stride;
  return row * (args.x_stride == 0 ? args.H * between : args.x_stride) + head * between;
}

__device__ float finished(Activation f, float x, float scale, const float* w, const float* gate) {
  float y = x * scale;
  if (w != nullptr) y *= *w;
  if (gate != nullptr) y *= f == Activation::kSigmoid ? sigmoid(*gate) : silu(*gate);
  return y;
}

// One block a head of a row, all of it in registers: everything is on its way at once. A thread
// reads and writes the same values, so y may be x.
__global__ void __launch_bounds__(kThreads) held_kernel(HeadRmsNormArgs args) {
  let_next_start();
  const int64_t row = blockIdx.x / args.H, head = blockIdx.x % args.H;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * args.DV;
  const int64_t x_at = start_of(args, row, head), gate_at = row * args.gate_stride + head * args.DV;
  float x[kHeld], w[kHeld], gate[kHeld];
  const auto for_each = [&](auto visit) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int d = j * kThreads + static_cast<int>(threadIdx.x);
      if (d < args.DV) visit(j, d);
    }
  };
  for_each([&](int j, int d) { w[j] = args.w == nullptr ? 1 : args.w[d]; });
  wait_for_previous();
  for_each([&](int j, int d) {
    x[j] = args.x[x_at + d];
    gate[j] = args.gate == nullptr ? 0 : args.gate[gate_at + d];
  });
  float squares = 0;
  for_each([&](int j, int) { squares = fmaf(x[j], x[j], squares); });
  const float scale = norm_scale(block_sum<kThreads>(squares), args.DV, args.eps);
  for_each([&](int j, int d) {
    put(args.y, args.y_bf16, at + d,
        finished(args.f, x[j], scale, args.w == nullptr ? nullptr : &w[j],
                 args.gate == nullptr ? nullptr : &gate[j]));
  });
}

// Does the same for heads of any size.
__global__ void __launch_bounds__(kThreads) any_kernel(HeadRmsNormArgs args) {
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x / args.H, head = blockIdx.x % args.H;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * args.DV;
  const float* gate =
      args.gate == nullptr ? nullptr : args.gate + row * args.gate_stride + head * args.DV;
  const float* x = args.x + start_of(args, row, head);
  float squares = 0;
#pragma unroll 4
  for (int d = threadIdx.x; d < args.DV; d += kThreads) {
    squares = fmaf(x[d], x[d], squares);
  }
  const float scale = norm_scale(block_sum<kThreads>(squares), args.DV, args.eps);
#pragma unroll 4
  for (int d = threadIdx.x; d < args.DV; d += kThreads) {
    put(args.y, args.y_bf16, at + d,
        finished(args.f, x[d], scale, args.w == nullptr ? nullptr : args.w + d,
                 gate == nullptr ? nullptr : gate + d));
  }
}

}  // namespace

void run(const HeadRmsNormArgs& args, Stream& stream) {
  if (args.rows == 0) return;
  launch_early(stream, "head_rms_norm", args.DV <= kHeld * kThreads ? held_kernel : any_kernel,
               {.grid = static_cast<unsigned>(args.rows * args.H), .threads = kThreads}, args);
}

}  // namespace recurve::cuda::sm80
