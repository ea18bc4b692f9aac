#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/capabilities.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/rows/layer_norm.cuh"
#include "kernels/cuda/sm80/vector.cuh"

// A thread has four channels side by side, of which `count` are there. kVector: all are, and
// everything begins at multiples of 16 bytes.
namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256;
constexpr int kChannels = 4 * kThreads;  // of a block
constexpr int kRows = 16;                // of a sequence, that a thread takes one after the other

template <bool kVector>
__device__ float4 load(const float* from, int count) {
  if constexpr (kVector) return *reinterpret_cast<const float4*>(from);
  return load4<false>(from, count);
}
template <bool kVector, typename T>
__device__ void store(T* to, const float4& x, int count) {
  if constexpr (kVector) {
    *reinterpret_cast<Four<T>*>(to) = four_of<T>(x);
  } else {
    store4<false>(to, x, count);
  }
}

// One row for each reader, rounded alike wherever the row before comes from.
template <bool kVector>
__device__ void mix(const TokenShiftArgs& a, int64_t row, int d, const float4& x,
                    const float4& before) {
  const int count = a.D - d;
  const int64_t at = row * a.D + d;
  const float4 change = make_float4(before.x - x.x, before.y - x.y, before.z - x.z, before.w - x.w);
#pragma unroll
  for (int i = 0; i < TokenShiftArgs::kMost; ++i) {
    if (i >= a.n) break;
    const float4 mu = load<kVector>(a.mu[i] + d, count);
    const float4 y = make_float4(fmaf(change.x, mu.x, x.x), fmaf(change.y, mu.y, x.y),
                                 fmaf(change.z, mu.z, x.z), fmaf(change.w, mu.w, x.w));
    if (a.y[i] != nullptr) store<kVector>(a.y[i] + at, y, count);
    if (a.y_bf16[i] != nullptr) store<kVector>(a.y_bf16[i] + at, y, count);
  }
}

// The first of the thread's channels, and the part of the rest of the work that its block has.
struct BlockCoord {
  int d, part;
};
__device__ BlockCoord coord_of(int pieces) {
  const int block = static_cast<int>(blockIdx.x);
  return {block % pieces * kChannels + static_cast<int>(threadIdx.x) * 4, block / pieces};
}

__device__ float* state_of(const TokenShiftArgs& a, int sequence) {
  return a.state + static_cast<int64_t>(a.seqs.slot[sequence]) * a.D;
}

// Sequences of one row each. Blocks: sequences x pieces of kChannels.
template <bool kVector>
__global__ void __launch_bounds__(kThreads) step_kernel(TokenShiftArgs a, int pieces) {
  let_next_start();
  wait_for_previous();
  const auto [d, sequence] = coord_of(pieces);
  if (d >= a.D) return;
  const int64_t row = a.seqs.begin[sequence];
  float* state = state_of(a, sequence) + d;
  const float4 x = load<kVector>(a.x + row * a.x_stride + d, a.D - d);
  const float4 before = load<kVector>(state, a.D - d);
  store<kVector>(state, x, a.D - d);
  mix<kVector>(a, row, d, x, before);
}

// Sequences of one row each, whose rows are normed first. Blocks: sequences. The bits are those of
// the norm's own kernel and of step_kernel.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) norm_step_kernel(TokenShiftArgs a) {
  using Norm = HeldNorm<kThreads, kHeldOfNorm>;
  let_next_start();
  float x[kHeldOfNorm], change[kHeldOfNorm];
  Norm norm;
  norm.load(a.norm, a.norm_bias, a.D);
  float mu[TokenShiftArgs::kMost][kHeldOfNorm];
#pragma unroll
  for (int i = 0; i < TokenShiftArgs::kMost; ++i) {
    if (i < a.n) Norm::for_each(a.D, [&](int j, int d) { mu[i][j] = a.mu[i][d]; });
  }
  wait_for_previous();
  const int sequence = static_cast<int>(blockIdx.x);
  const int64_t at = static_cast<int64_t>(a.seqs.begin[sequence]) * a.D;
  float* const state = state_of(a, sequence);
  Norm::for_each(a.D, [&](int j, int d) { x[j] = a.x[at + d]; });
  Norm::for_each(a.D, [&](int j, int d) { change[j] = state[d]; });
  norm.apply(x, a.D, a.norm_eps);
  Norm::for_each(a.D, [&](int j, int d) {
    state[d] = x[j];
    change[j] -= x[j];
  });
#pragma unroll
  for (int i = 0; i < TokenShiftArgs::kMost; ++i) {
    if (i >= a.n) break;
    Norm::for_each(a.D, [&](int j, int d) {
      const float y = fmaf(change[j], mu[i][j], x[j]);
      if (a.y[i] != nullptr) a.y[i][at + d] = y;
      if (a.y_bf16[i] != nullptr) a.y_bf16[i][at + d] = kept_as<uint16_t>(y);
    });
  }
}

// As norm_step_kernel, to the same bits, of few sequences: each block norms a whole row and mixes
// kThreads of its channels, as one block would take longer to write a row for each of many readers.
// Blocks: sequences x pieces of kThreads channels.
template <int kThreads>
__global__ void __launch_bounds__(kThreads) norm_piece_kernel(TokenShiftArgs a, int pieces) {
  using Norm = HeldNorm<kThreads, kHeldOfNorm>;
  let_next_start();
  const int block = static_cast<int>(blockIdx.x), sequence = block / pieces;
  const int own = block % pieces * kThreads + static_cast<int>(threadIdx.x);
  const int d = min(own, a.D - 1);
  const float w = a.norm[d], bias = a.norm_bias == nullptr ? 0 : a.norm_bias[d];
  float mu[TokenShiftArgs::kMost];
#pragma unroll
  for (int i = 0; i < TokenShiftArgs::kMost; ++i) {
    if (i < a.n) mu[i] = a.mu[i][d];
  }
  wait_for_previous();
  const int64_t first = static_cast<int64_t>(a.seqs.begin[sequence]) * a.D;
  float* const state = state_of(a, sequence) + d;
  float row[kHeldOfNorm];
  Norm::for_each(a.D, [&](int j, int channel) { row[j] = a.x[first + channel]; });
  const float before = *state, mine = a.x[first + d];
  const float x = Norm::moments(row, a.D, a.norm_eps).norm(mine, w, bias), change = before - x;
  if (own >= a.D) return;
  *state = x;
#pragma unroll
  for (int i = 0; i < TokenShiftArgs::kMost; ++i) {
    if (i >= a.n) break;
    const float y = fmaf(change, mu[i], x);
    if (a.y[i] != nullptr) a.y[i][first + d] = y;
    if (a.y_bf16[i] != nullptr) a.y_bf16[i][first + d] = kept_as<uint16_t>(y);
  }
}

// Sequences of any length: the states are read and left as they are. Blocks: sequences x kRows rows
// of the longest x pieces of kChannels.
template <bool kVector>
__global__ void __launch_bounds__(kThreads) rows_kernel(TokenShiftArgs a, int pieces, int parts) {
  let_next_start();
  wait_for_previous();
  const auto [d, block] = coord_of(pieces);
  const int part = block % parts, sequence = block / parts;
  if (d >= a.D) return;
  const int64_t first = a.seqs.begin[sequence] + static_cast<int64_t>(part) * kRows;
  const int64_t end = min(first + kRows, static_cast<int64_t>(a.seqs.begin[sequence + 1]));
  if (first >= end) return;
  const float* x = a.x + d;
  float4 before =
      load<kVector>(part == 0 ? state_of(a, sequence) + d : x + (first - 1) * a.x_stride, a.D - d);
#pragma unroll 2
  for (int64_t row = first; row < end; ++row) {
    const float4 now = load<kVector>(x + row * a.x_stride, a.D - d);
    mix<kVector>(a, row, d, now, before);
    before = now;
  }
}

// The states, when all have been read. Blocks as of step_kernel.
template <bool kVector>
__global__ void __launch_bounds__(kThreads) state_kernel(TokenShiftArgs a, int pieces) {
  let_next_start();
  wait_for_previous();
  const auto [d, sequence] = coord_of(pieces);
  if (d >= a.D) return;
  const int64_t last = a.seqs.begin[sequence + 1] - 1;
  store<kVector>(state_of(a, sequence) + d, load<kVector>(a.x + last * a.x_stride + d, a.D - d),
                 a.D - d);
}

// Depends on the shape and place of the arguments alone; both forms give the same bits.
bool takes_vectors(const TokenShiftArgs& a) {
  bool places = aligned(a.x) && aligned(a.state);
  for (int i = 0; i < a.n; ++i) {
    places = places && aligned(a.mu[i]) && aligned(a.y[i]) && aligned(a.y_bf16[i]);
  }
  return places && a.D % 4 == 0 && a.x_stride % 4 == 0;
}

template <bool kVector>
void shift(const TokenShiftArgs& args, Stream& stream) {
  const int pieces = ceil_div(args.D, kChannels);
  const auto blocks = static_cast<unsigned>(args.seqs.num_seqs * pieces);
  const LaunchShape of_sequences = {.grid = blocks, .threads = kThreads};
  if (args.seqs.max_len == 1) {
    launch_early(stream, "token_shift", step_kernel<kVector>, of_sequences, args, pieces);
    return;
  }
  const int parts = ceil_div(args.seqs.max_len, kRows);
  launch_early(stream, "token_shift, rows", rows_kernel<kVector>,
               {.grid = blocks * static_cast<unsigned>(parts), .threads = kThreads}, args, pieces,
               parts);
  launch_early(stream, "token_shift, states", state_kernel<kVector>, of_sequences, args, pieces);
}

void norm_and_shift(const TokenShiftArgs& args, Stream& stream) {
  const auto sequences = static_cast<unsigned>(args.seqs.num_seqs);
  with_norm_threads(args.D, [&]<int kThreads>() {
    const int pieces = ceil_div(args.D, kThreads), blocks = args.seqs.num_seqs * pieces;
    if (blocks > static_cast<CudaStream&>(stream).multiprocessors()) {
      launch_early(stream, "token_shift, norm", norm_step_kernel<kThreads>,
                   {.grid = sequences, .threads = kThreads}, args);
    } else {
      launch_early(stream, "token_shift, norm", norm_piece_kernel<kThreads>,
                   {.grid = static_cast<unsigned>(blocks), .threads = kThreads}, args, pieces);
    }
  });
}

}  // namespace

void run(const TokenShiftArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  if (args.norm != nullptr) return norm_and_shift(args, stream);
  return takes_vectors(args) ? shift<true>(args, stream) : shift<false>(args, stream);
}

}  // namespace recurve::cuda::sm80
