#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/rows/activate.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;
constexpr int kHeld = 8;  // values of a head that a thread keeps between the passes

// A head of queries or keys by a warp, in place.
__device__ void norm_head(const DeltaGateArgs& a, float* x, int lane) {
  const bool length = a.norm == DeltaNorm::kLength;
  float held[kHeld], sum = 0;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int c = j * kWarpSize + lane;
    held[j] = c < a.DK ? x[c] : 0;
  }
#pragma unroll
  for (int j = 0; j < kHeld; ++j) sum = length ? fmaf(held[j], held[j], sum) : sum + held[j];
  for (int c = kHeld * kWarpSize + lane; c < a.DK; c += kWarpSize) {
    sum = length ? fmaf(x[c], x[c], sum) : sum + x[c];
  }
  sum = warp_sum(sum);
  const float divisor = length ? sqrtf(sum + a.eps) : sum;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int c = j * kWarpSize + lane;
    if (c < a.DK) x[c] = held[j] / divisor;
  }
  for (int c = kHeld * kWarpSize + lane; c < a.DK; c += kWarpSize) x[c] /= divisor;
}

// beta of some heads of values, and their decays: a lane a value.
__device__ void gate_heads(const DeltaGateArgs& a, int64_t row, int piece, int lane) {
  const int x = piece * kWarpSize + lane;
  if (x < a.H) {
    const float part = a.b == nullptr ? 1 : sigmoid(a.b[row * a.b_stride + x]);
    a.beta[row * a.H + x] = a.beta_scale * part;
  }
  const int decays = a.H * a.decays;
  if (x < decays) {
    a.g[row * decays + x] = a.A[x / a.decays] * softplus(a.a[row * a.a_stride + x] + a.dt_bias[x]);
  }
}

// A warp a head of queries or keys of a row, or some of its gates. norms: heads of both; pieces: of
// a row's gates.
__global__ void __launch_bounds__(kThreads) delta_gate_kernel(DeltaGateArgs a, int pieces) {
  let_next_start();
  wait_for_previous();
  const int norms = 2 * a.HK, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t item =
      static_cast<int64_t>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarpSize;
  const int64_t row = item / (norms + pieces);
  if (row >= a.rows) return;
  const int part = static_cast<int>(item % (norms + pieces));
  if (part >= norms) return gate_heads(a, row, part - norms, lane);
  float* const rows = part < a.HK ? a.q : a.k;
  norm_head(a, rows + row * a.qk_stride + static_cast<int64_t>(part % a.HK) * a.DK, lane);
}

}  // namespace

void run(const DeltaGateArgs& args, Stream& stream) {
  if (args.rows == 0) return;
  const int pieces = ceil_div(args.H * std::max(1, args.decays), kWarpSize);
  const int64_t items = int64_t{args.rows} * (2 * args.HK + pieces);
  launch_early(
      stream, "delta_gate", delta_gate_kernel,
      {.grid = static_cast<unsigned>(ceil_div(items, int64_t{kWarps})), .threads = kThreads}, args,
      pieces);
}

}  // namespace recurve::cuda::sm80
