#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 16;  // of a sequence, that a thread takes one after the other

// One row of one channel for each reader, rounded alike wherever the row before comes from.
__device__ void mix(const TokenShiftArgs& a, int64_t row, int d, float x, float before) {
  const float difference = before - x;
  float* y = a.y + row * a.D + d;
  const int64_t all = static_cast<int64_t>(a.seqs.rows) * a.D;
#pragma unroll
  for (int i = 0; i < TokenShiftArgs::kMost; ++i) {
    if (i < a.n) y[i * all] = fmaf(difference, a.mu[i][d], x);
  }
}

// Sequences of one row each. Blocks: sequences x pieces of kThreads channels.
__global__ void __launch_bounds__(kThreads) step_kernel(TokenShiftArgs a, int pieces) {
  let_next_start();
  wait_for_previous();
  const int sequence = static_cast<int>(blockIdx.x) / pieces;
  const int d = static_cast<int>(blockIdx.x) % pieces * kThreads + static_cast<int>(threadIdx.x);
  if (d >= a.D) return;
  const int64_t row = a.seqs.begin[sequence];
  float* state = a.state + static_cast<int64_t>(a.seqs.slot[sequence]) * a.D + d;
  const float x = a.x[row * a.x_stride + d], before = *state;
  *state = x;
  mix(a, row, d, x, before);
}

// Sequences of any length: the states are read and left as they are. Blocks: sequences x kRows rows
// of the longest x pieces of kThreads channels.
__global__ void __launch_bounds__(kThreads) rows_kernel(TokenShiftArgs a, int pieces, int parts) {
  let_next_start();
  wait_for_previous();
  const int block = static_cast<int>(blockIdx.x);
  const int d = block % pieces * kThreads + static_cast<int>(threadIdx.x);
  const int part = block / pieces % parts, sequence = block / pieces / parts;
  if (d >= a.D) return;
  const int64_t begin = a.seqs.begin[sequence], first = begin + static_cast<int64_t>(part) * kRows;
  const int64_t end = min(first + kRows, static_cast<int64_t>(a.seqs.begin[sequence + 1]));
  if (first >= end) return;
  const float* x = a.x + d;
  float before = part == 0 ? a.state[static_cast<int64_t>(a.seqs.slot[sequence]) * a.D + d]
                           : x[(first - 1) * a.x_stride];
#pragma unroll 4
  for (int64_t row = first; row < end; ++row) {
    const float now = x[row * a.x_stride];
    mix(a, row, d, now, before);
    before = now;
  }
}

// The states, when all have been read. Blocks as of step_kernel.
__global__ void __launch_bounds__(kThreads) state_kernel(TokenShiftArgs a, int pieces) {
  let_next_start();
  wait_for_previous();
  const int sequence = static_cast<int>(blockIdx.x) / pieces;
  const int d = static_cast<int>(blockIdx.x) % pieces * kThreads + static_cast<int>(threadIdx.x);
  if (d >= a.D) return;
  const int64_t last = a.seqs.begin[sequence + 1] - 1;
  a.state[static_cast<int64_t>(a.seqs.slot[sequence]) * a.D + d] = a.x[last * a.x_stride + d];
}

}  // namespace

void run(const TokenShiftArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  const int pieces = ceil_div(args.D, kThreads), blocks = args.seqs.num_seqs * pieces;
  const LaunchShape of_sequences = {.grid = static_cast<unsigned>(blocks), .threads = kThreads};
  if (args.seqs.max_len == 1) {
    launch_early(stream, "token_shift", step_kernel, of_sequences, args, pieces);
    return;
  }
  const int parts = ceil_div(args.seqs.max_len, kRows);
  launch_early(
      stream, "token_shift, rows", rows_kernel,
      {.grid = static_cast<unsigned>(blocks) * static_cast<unsigned>(parts), .threads = kThreads},
      args, pieces, parts);
  launch_early(stream, "token_shift, states", state_kernel, of_sequences, args, pieces);
}

}  // namespace recurve::cuda::sm80
