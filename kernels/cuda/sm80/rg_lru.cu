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

// What a channel of a row is made from.
struct Inputs {
  float u, i, r, branch;
  bool first;  // of its session
};
__device__ Inputs inputs_of(const RgLruArgs& a, int64_t row, int d) {
  const int64_t at = row * a.D + d;
  return {a.u[at], a.i[at], a.r[at], a.branch[row * a.branch_stride + d], a.position[row] == 0};
}

// Rounded alike by all kernels.
__device__ Gated gated(const Inputs& in, float rate) {
  const float put = __fmul_rn(sigmoid(in.i), in.u), log_a = __fmul_rn(rate, sigmoid(in.r));
  const float kept = sqrtf(-expm1f(2 * log_a));
  return {in.first ? 0 : expf(log_a), in.first ? put : __fmul_rn(kept, put),
          activate(Activation::kGeluTanh, in.branch)};
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
  const Gated x = gated(inputs_of(a, row, d), rate);
  const float h = advance(x, state);
  state = h;
  a.y[row * a.D + d] = __fmul_rn(x.branch, h);
}

// A stage of a sequence's rows in shared memory.
struct Stage {
  float decays[kRows][kChannels], h[kRows][kChannels];  // h: x until it is there
};

// The states of the rows that there are, by one warp: gives the last.
__device__ float advance(Stage& stage, int count, float h) {
  constexpr int kAtOnce = 8;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (int base = 0; base < count; base += kAtOnce) {
    float decays[kAtOnce], x[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      decays[i] = stage.decays[base + i][lane];
      x[i] = stage.h[base + i][lane];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (base + i < count) h = advance({decays[i], x[i], 0}, h);
      stage.h[base + i][lane] = h;
    }
  }
  return h;
}

// Blocks: sequences x pieces of kChannels. The rows of a stage are on their way while those before
// them are computed.
__global__ void __launch_bounds__(kThreads) rows_kernel(RgLruArgs a, int pieces) {
  __shared__ Stage stage;
  const int sequence = static_cast<int>(blockIdx.x) / pieces;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int d = static_cast<int>(blockIdx.x) % pieces * kChannels + lane;
  const bool there = d < a.D;
  const int channel = there ? d : a.D - 1;
  const float rate = a.rate[channel];
  wait_for_previous();
  let_next_start();
  const int64_t begin = a.seqs.begin[sequence], end = a.seqs.begin[sequence + 1];
  float& state = a.h[static_cast<int64_t>(a.seqs.slot[sequence]) * a.D + channel];
  const auto load = [&](Inputs(&to)[kHeld], int64_t first) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      to[j] = inputs_of(a, min(first + j * kWarps + warp, end - 1), channel);
    }
  };
  float h = state;
  Inputs inputs[kHeld];
  load(inputs, begin);
  for (int64_t first = begin; first < end; first += kRows) {
    Inputs next[kHeld];
    load(next, min(first + kRows, end - 1));
    float branch[kHeld];
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const Gated x = gated(inputs[j], rate);
      stage.decays[j * kWarps + warp][lane] = x.a;
      stage.h[j * kWarps + warp][lane] = x.x;
      branch[j] = x.branch;
    }
    __syncthreads();  // all gates are there
    const int count = static_cast<int>(min(static_cast<int64_t>(kRows), end - first));
    if (warp == 0) h = advance(stage, count, h);
    __syncthreads();  // all states are there
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = j * kWarps + warp;
      if (there && i < count) a.y[(first + i) * a.D + d] = __fmul_rn(branch[j], stage.h[i][lane]);
      inputs[j] = next[j];
    }
  }
  if (warp == 0 && there) state = h;
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
