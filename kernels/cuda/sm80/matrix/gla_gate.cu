#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 128;
constexpr int kHeld = 16;  // weights of a channel in registers: all of them in public models
constexpr int kRows = 4;   // a thread

__device__ float weight_at(const Matrix& W, int64_t index) {
  return W.dtype == DType::kBF16 ? widen_bf16(static_cast<const uint16_t*>(W.data)[index])
                                 : static_cast<const float*>(W.data)[index];
}

// A thread: one channel of kRows rows.
__global__ void __launch_bounds__(kThreads) gla_gate_kernel(GlaGateArgs args, int pieces) {
  const int D = static_cast<int>(args.W.N), R = static_cast<int>(args.W.K);
  const int d = static_cast<int>(blockIdx.x) % pieces * kThreads + static_cast<int>(threadIdx.x);
  const int first = static_cast<int>(blockIdx.x) / pieces * kRows;
  const int used = min(d, D - 1), rows = min(kRows, args.rows - first);
  const int64_t at = static_cast<int64_t>(used) * R;
  float held[kHeld];
#pragma unroll
  for (int r = 0; r < kHeld; ++r) held[r] = r < R ? weight_at(args.W, at + r) : 0;
  const float bias = args.bias == nullptr ? 0 : args.bias[used];
  wait_for_previous();
  let_next_start();
  if (d >= D) return;
  for (int row = first; row < first + rows; ++row) {
    const float* low = args.low + static_cast<int64_t>(row) * args.low_stride;
    float sum = 0;
#pragma unroll
    for (int r = 0; r < kHeld; ++r) {
      if (r < R) sum = fmaf(held[r], low[r], sum);
    }
    for (int r = kHeld; r < R; ++r) sum = fmaf(weight_at(args.W, at + r), low[r], sum);
    const float g = log_sigmoid(sum + bias) * args.scale;
    args.g[static_cast<int64_t>(row) * D + d] = g < args.floor ? args.floor : g;
  }
}

}  // namespace

void run(const GlaGateArgs& args, Stream& stream) {
  if (args.rows == 0 || args.W.N == 0) return;
  const int pieces = ceil_div(args.W.N, kThreads);
  const int groups = ceil_div(args.rows, kRows);
  launch_early(stream, "gla_gate", gla_gate_kernel,
               {.grid = static_cast<unsigned>(pieces * groups), .threads = kThreads}, args, pieces);
}

}  // namespace recurve::cuda::sm80
