#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/sm80/activate.cuh"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/vector.cuh"

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
    a.y[(part.begin + t) * a.D + d] = a.silu ? silu(sum) : sum;
  }
  if (part.t0 > 0) return;
  // What is written has been read: value j of the new state is value j + L of the old.
  for (int j = 0; j < past; ++j) state[j] = value(part.L - past + j);
}

// A thread: four channels side by side, of width 4, with the rows before the current one in
// registers. Everything begins at multiples of 16 bytes.
constexpr int kFourRows = 32;
__global__ void __launch_bounds__(kThreads) four_kernel(CausalConv1dArgs a) {
  constexpr int kWidth = 4, kPast = kWidth - 1;
  const int d = 4 * (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x));
  const Part part = part_of(a, kFourRows);
  if (d >= a.D || part.t0 >= part.L) return;
  const auto four = [](const float* from) { return *reinterpret_cast<const float4*>(from); };
  const float* x = a.x + part.begin * a.x_stride + d;
  float* state = a.state + (part.slot * a.D + d) * kPast;

  float past[4][kPast];  // of each channel, oldest first
  if (part.t0 == 0) {
    float flat[4 * kPast];
#pragma unroll
    for (int j = 0; j < kPast; ++j) {
      *reinterpret_cast<float4*>(flat + 4 * j) = load4<true>(state + 4 * j, 4);
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
#pragma unroll
      for (int j = 0; j < kPast; ++j) past[c][j] = flat[c * kPast + j];
    }
  } else {
#pragma unroll
    for (int j = 0; j < kPast; ++j) {
      const float4 row = four(x + static_cast<int64_t>(part.t0 - kPast + j) * a.x_stride);
      past[0][j] = row.x;
      past[1][j] = row.y;
      past[2][j] = row.z;
      past[3][j] = row.w;
    }
  }
  float4 w[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) w[c] = four(a.w + static_cast<int64_t>(d + c) * kWidth);
  const float4 bias = a.bias == nullptr ? make_float4(0, 0, 0, 0) : four(a.bias + d);

  const auto next = [&](int c, float value, float b) {
    float sum = __fmaf_rn(w[c].x, past[c][0], b);
    sum = __fmaf_rn(w[c].y, past[c][1], sum);
    sum = __fmaf_rn(w[c].z, past[c][2], sum);
    sum = __fmaf_rn(w[c].w, value, sum);
    past[c][0] = past[c][1];
    past[c][1] = past[c][2];
    past[c][2] = value;
    return a.silu ? silu(sum) : sum;
  };
#pragma unroll 4
  for (int t = part.t0; t < part.end; ++t) {
    const float4 row = four(x + static_cast<int64_t>(t) * a.x_stride);
    *reinterpret_cast<float4*>(a.y + (part.begin + t) * a.D + d) =
        make_float4(next(0, row.x, bias.x), next(1, row.y, bias.y), next(2, row.z, bias.z),
                    next(3, row.w, bias.w));
  }
  if (part.t0 > 0) return;
  if (part.end < part.L) {  // the last rows are another block's
#pragma unroll
    for (int j = 0; j < kPast; ++j) {
      const float4 row = four(x + static_cast<int64_t>(part.L - kPast + j) * a.x_stride);
      past[0][j] = row.x;
      past[1][j] = row.y;
      past[2][j] = row.z;
      past[3][j] = row.w;
    }
  }
  float flat[4 * kPast];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
#pragma unroll
    for (int j = 0; j < kPast; ++j) flat[c * kPast + j] = past[c][j];
  }
#pragma unroll
  for (int j = 0; j < kPast; ++j) {
    store4<true>(state + 4 * j, *reinterpret_cast<const float4*>(flat + 4 * j), 4);
  }
}

// Depends on the op's shape and place alone, so it is one kernel for all batches.
bool takes_four(const CausalConv1dArgs& a) {
  const auto aligned = [](const float* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return a.width == 4 && a.D % 4 == 0 && a.x_stride % 4 == 0 && aligned(a.x) && aligned(a.y) &&
         aligned(a.w) && aligned(a.state) && aligned(a.bias);
}

}  // namespace

void causal_conv1d(const CausalConv1dArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  const bool four = takes_four(args);
  const int channels = four ? 4 * kThreads : kThreads, rows = four ? kFourRows : kRows;
  const dim3 blocks((args.D + channels - 1) / channels, args.seqs.num_seqs,
                    (args.seqs.max_len + rows - 1) / rows);
  const auto kernel = four ? four_kernel : any_kernel;
  kernel<<<blocks, kThreads, 0, use(stream)>>>(args);
  expect_launched("causal_conv1d");
}

}  // namespace recurve::cuda::sm80
