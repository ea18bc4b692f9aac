#include "kernels/ceil_div.h"
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/activate.cuh"
#include "kernels/cuda/sm80/ops.h"

// Most of a row's work is its gates, which do not know the state: in prompts all warps of a block
// make those of some rows, one of them goes through the rows, and all make the outputs.
namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kChannels = kWarpSize;   // of a block that takes rows
constexpr int kHeld = 4;               // rows of a stage that a warp has
constexpr int kRows = kHeld * kWarps;  // of a stage

// h <- a h + x, and y = branch h.
struct Gated {
  float a, x, branch;
};

// Rounded alike by all kernels.
__device__ Gated gated(float u, float i, float r, float branch, float rate, bool first) {
  const float put = __fmul_rn(sigmoid(i), u), log_a = __fmul_rn(rate, sigmoid(r));
  const float kept = sqrtf(-expm1f(2 * log_a));
  return {first ? 0 : expf(log_a), first ? put : __fmul_rn(kept, put),
          activate(Activation::kGeluTanh, branch)};
}
__device__ Gated gated_row(const RgLruArgs& a, int64_t row, int d, float rate) {
  const int64_t at = row * a.D + d;
  return gated(a.u[at], a.i[at], a.r[at], a.branch[row * a.branch_stride + d], rate,
               a.position[row] == 0);
}
// What comes before a session's first row is not there, whatever a slot holds.
__device__ float advance(const Gated& row, float h) {
  return row.a == 0 ? row.x : __fmaf_rn(row.a, h, row.x);
}

// Sequences of one row each, a thread a channel. Blocks: sequences x pieces of kThreads.
__global__ void __launch_bounds__(kThreads) step_kernel(RgLruArgs a, int pieces) {
  const int sequence = static_cast<int>(blockIdx.x) / pieces;
  const int d = static_cast<int>(blockIdx.x) % pieces * kThreads + static_cast<int>(threadIdx.x);
  if (d >= a.D) return;
  const float rate = a.rate[d];
  wait_for_previous();
  let_next_start();
  const int64_t row = a.seqs.begin[sequence];
  float& state = a.h[static_cast<int64_t>(a.seqs.slot[sequence]) * a.D + d];
  const Gated x = gated_row(a, row, d, rate);
  const float h = advance(x, state);
  state = h;
  a.y[row * a.D + d] = __fmul_rn(x.branch, h);
}

// Blocks: sequences x pieces of kChannels.
__global__ void __launch_bounds__(kThreads) rows_kernel(RgLruArgs a, int pieces) {
  __shared__ float decays[kRows][kChannels], h_of[kRows][kChannels];  // h_of: x until h is there
  const int sequence = static_cast<int>(blockIdx.x) / pieces;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int d = static_cast<int>(blockIdx.x) % pieces * kChannels + lane;
  const bool there = d < a.D;
  const float rate = there ? a.rate[d] : 0;
  wait_for_previous();
  let_next_start();
  const int64_t begin = a.seqs.begin[sequence], end = a.seqs.begin[sequence + 1];
  float* const state = a.h + static_cast<int64_t>(a.seqs.slot[sequence]) * a.D + d;
  float h = there ? *state : 0;
  for (int64_t first = begin; first < end; first += kRows) {
    float branch[kHeld];
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = j * kWarps + warp;
      Gated x{0, 0, 0};
      if (there && first + i < end) x = gated_row(a, first + i, d, rate);
      decays[i][lane] = x.a;
      h_of[i][lane] = x.x;
      branch[j] = x.branch;
    }
    __syncthreads();  // all gates are there
    if (warp == 0) {
      const int count = static_cast<int>(min(static_cast<int64_t>(kRows), end - first));
#pragma unroll 8
      for (int i = 0; i < count; ++i) {
        h = advance({decays[i][lane], h_of[i][lane], 0}, h);
        h_of[i][lane] = h;
      }
    }
    __syncthreads();  // all states are there
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = j * kWarps + warp;
      if (there && first + i < end) {
        a.y[(first + i) * a.D + d] = __fmul_rn(branch[j], h_of[i][lane]);
      }
    }
  }
  if (warp == 0 && there) *state = h;
}

}  // namespace

void run(const RgLruArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  const bool step = args.seqs.max_len == 1;
  const int pieces = ceil_div(args.D, step ? kThreads : kChannels);
  launch_early(stream, "rg_lru", step ? step_kernel : rows_kernel,
               {.grid = static_cast<unsigned>(args.seqs.num_seqs * pieces), .threads = kThreads},
               args, pieces);
}

}  // namespace recurve::cuda::sm80
