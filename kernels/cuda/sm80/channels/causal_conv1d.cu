#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/channels/causal_conv1d.cuh"
#include "kernels/cuda/sm80/channels/causal_conv1d.h"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 128;

// The rows of a sequence that a block has. Rows before the first of this call are in the state,
// which concerns the block of the first rows alone; so that one moves it on too. Its rows must be
// width - 1 at least.
struct Part {
  int64_t begin;  // row of the batch where the sequence begins
  int L;          // rows of the sequence
  int t0, end;    // those of the block
  int64_t slot;
};
__device__ Part part_of(const CausalConv1dArgs& a, int rows) {
  const int begin = a.seqs.begin[blockIdx.y], L = a.seqs.begin[blockIdx.y + 1] - begin;
  const int t0 = static_cast<int>(blockIdx.z) * rows;
  return {begin, L, t0, min(L, t0 + rows), a.seqs.slot[blockIdx.y]};
}

// A thread: one channel. Any width.
constexpr int kRows = 256;
__global__ void __launch_bounds__(kThreads) any_kernel(CausalConv1dArgs a) {
  let_next_start();
  wait_for_previous();
  const int d = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const Part part = part_of(a, kRows);
  if (d >= a.D || part.t0 >= part.L) return;
  const int past = a.width - 1;
  const float* x = a.x + part.begin * a.x_stride + d;
  const float* w = a.w + static_cast<int64_t>(d) * a.width;
  float* state = a.state + (part.slot * a.D + d) * past;
  // Row t of the sequence, from -past on.
  const auto value = [&](int t) {
    return t < 0 ? state[past + t] : x[static_cast<int64_t>(t) * a.x_stride];
  };
  const float bias = a.bias == nullptr ? 0 : a.bias[d];
  for (int t = part.t0; t < part.end; ++t) {
    float sum = bias;
    for (int j = 0; j <= past; ++j) sum = __fmaf_rn(w[j], value(t - past + j), sum);
    const int64_t at = (part.begin + t) * a.D + d;
    a.y[at] = a.silu ? silu(sum) : sum;
    if (a.y_bf16 != nullptr) a.y_bf16[at] = kept_as<uint16_t>(a.y[at]);
  }
  if (part.t0 > 0) return;
  // What is written has been read: value j of the new state is value j + L of the old.
  for (int j = 0; j < past; ++j) state[j] = value(part.L - past + j);
}

// A thread: four channels side by side. It has so many rows on their way together.
constexpr int kFourRows = 16, kTogether = 8;
__global__ void __launch_bounds__(kThreads) four_kernel(CausalConv1dArgs a) {
  constexpr int kPast = FourChannels::kPast;
  let_next_start();
  wait_for_previous();
  const int d = 4 * (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x));
  const Part part = part_of(a, kFourRows);
  if (d >= a.D || part.t0 >= part.L) return;
  const float* x = a.x + part.begin * a.x_stride + d;
  float* state = a.state + (part.slot * a.D + d) * kPast;
  FourChannels channels;
  channels.load_weights(a, d);

  const auto row_at = [&](int t) {
    return *reinterpret_cast<const float4*>(x + static_cast<int64_t>(t) * a.x_stride);
  };
  // The rows before row t, all of them of this call.
  const auto take_rows_before = [&](int t) {
#pragma unroll
    for (int j = 0; j < kPast; ++j) {
      const float4 row = row_at(t - kPast + j);
      channels.past[0][j] = row.x;
      channels.past[1][j] = row.y;
      channels.past[2][j] = row.z;
      channels.past[3][j] = row.w;
    }
  };
  float4 flat[kPast];
  if (part.t0 == 0) {
#pragma unroll
    for (int j = 0; j < kPast; ++j) flat[j] = load4<true>(state + 4 * j, 4);
    channels.take_past(flat);
  } else {
    take_rows_before(part.t0);
  }
  for (int t = part.t0; t < part.end; t += kTogether) {
    float4 rows[kTogether];
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (t + j < part.end) rows[j] = row_at(t + j);
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      if (t + j >= part.end) break;
      put_four(a, part.begin + t + j, d, channels.advance(rows[j], a.silu));
    }
  }
  if (part.t0 > 0) return;
  if (part.end < part.L) take_rows_before(part.L);  // the last rows are another block's
  channels.give_past(flat);
#pragma unroll
  for (int j = 0; j < kPast; ++j) store4<true>(state + 4 * j, flat[j], 4);
}

}  // namespace

void run(const CausalConv1dArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  const bool four = takes_four_channels(args);
  if (four && args.seqs.max_len == 1) return causal_conv1d_steps(args, stream);
  const int channels = four ? 4 * kThreads : kThreads, rows = four ? kFourRows : kRows;
  launch_early(stream, "causal_conv1d", four ? four_kernel : any_kernel,
               {.grid = {static_cast<unsigned>(ceil_div(args.D, channels)),
                         static_cast<unsigned>(args.seqs.num_seqs),
                         static_cast<unsigned>(ceil_div(args.seqs.max_len, rows))},
                .threads = kThreads},
               args);
}

}  // namespace recurve::cuda::sm80
