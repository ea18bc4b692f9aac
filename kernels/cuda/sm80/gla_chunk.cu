// The chunk form. Where channels have decays of their own, queries and keys get theirs before they
// are multiplied: the queries since the start of their block of rows, the keys up to its end, so
// that no exponent is positive; the products within a block are weighted one by one.
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/chunk_weights.cuh"
#include "kernels/cuda/sm80/gla_chunk.h"

namespace recurve::cuda::sm80 {
namespace {

// The scratch memory of a wave: blocks of rows, and a head of each.
struct Weights {
  BlockWeights* blocks;  // (blocks, H)
  float* F;              // (blocks, H, DK); this and what follows only where channels decay
  float* q;              // (blocks, kBlockRows, H, pitch) with their decays
  float* k;              //
  int pitch;             // DK, so that rows begin at multiples of 16 bytes
};
int pitch_of(const GlaArgs& a) { return (a.DK + 3) / 4 * 4; }
size_t block_bytes(const GlaArgs& a) {
  size_t floats = sizeof(BlockWeights) / sizeof(float);
  if (a.decay == GlaDecay::kChannel) {
    floats += static_cast<size_t>(2 * kBlockRows + 1) * static_cast<size_t>(pitch_of(a));
  }
  return sizeof(float) * floats * static_cast<size_t>(a.H);
}
Weights lay_out(const GlaArgs& a, int blocks, std::byte* memory) {
  const size_t heads = static_cast<size_t>(blocks) * static_cast<size_t>(a.H);
  Weights w{};
  w.blocks = reinterpret_cast<BlockWeights*>(memory);
  if (a.decay != GlaDecay::kChannel) return w;
  w.pitch = pitch_of(a);
  const size_t values = heads * static_cast<size_t>(w.pitch);
  w.q = reinterpret_cast<float*>(w.blocks + heads);
  w.k = w.q + values * kBlockRows;
  w.F = w.k + values * kBlockRows;
  return w;
}

// A head of a block of rows.
struct Head {
  const GlaArgs& a;
  int64_t row;  // the first
  int head;
  __device__ int64_t channel(int x) const { return static_cast<int64_t>(head) * a.DK + x; }
  __device__ float q(int t, int x) const { return a.q[(row + t) * a.q_stride + channel(x)]; }
  __device__ float k(int j, int x) const { return a.k[(row + j) * a.k_stride + channel(x)]; }
  __device__ float weight(int j) const {
    return a.i == nullptr ? 1 : expf(a.i[(row + j) * a.g_stride + head]);
  }
  // The logarithm of a row's decay: of the head, or of a channel.
  __device__ float g(int t) const {
    if (a.decay == GlaDecay::kHead) return a.g[head];
    return a.decay == GlaDecay::kToken ? a.g[(row + t) * a.g_stride + head] : 0;
  }
  __device__ float g(int t, int x) const { return a.g[(row + t) * a.g_stride + channel(x)]; }
};

// A block: a head of a block of rows, where the head has one decay a row.
__global__ void __launch_bounds__(kWeightThreads)
    head_kernel(GlaArgs a, int first_block, int blocks, BlockWeights* weights) {
  __shared__ float g[kBlockRows], weight[kBlockRows];
  let_next_start();
  wait_for_previous();
  const int number = static_cast<int>(blockIdx.x) / a.H, t = static_cast<int>(threadIdx.x);
  const RowBlock rows = row_block(a.seqs, a.chunk, number / blocks, first_block + number % blocks);
  if (rows.L == 0) return;
  const Head head{a, rows.first, static_cast<int>(blockIdx.x) % a.H};
  if (t < rows.L) {
    g[t] = head.g(t);
    weight[t] = head.weight(t);
  }
  __syncthreads();
  weights_of_block(
      rows.L, a.DK, a.scale, RowDecays{g, weight, rows.L},
      [&](int row, int x) { return head.q(row, x); },
      [&](int row, int x) { return head.k(row, x); }, weights[blockIdx.x]);
}

// Row t of P, and its query with the decays since the start of the block of rows. A warp.
__device__ void weigh_query(const Head& head, const float* weight, int t, int L, float* q,
                            float (&P)[kBlockRows]) {
  const int DK = head.a.DK, lane = static_cast<int>(threadIdx.x) % kWarpSize;
  float products[kBlockRows] = {};
  for (int x = lane; x < DK && t < L; x += kWarpSize) {
    const float query = head.a.scale * head.q(t, x);
    float G = 0;
#pragma unroll
    for (int j = kBlockRows - 1; j >= 0; --j) {
      if (j > t) continue;
      products[j] = fmaf(query * (weight[j] * head.k(j, x)), expf(G), products[j]);
      G += head.g(j, x);
    }
    q[x] = query * expf(G);
  }
  const float product = sums_of_rows(products, t < L ? t + 1 : 0);
  if (lane < kBlockRows) P[lane] = t < L && lane <= t ? product : 0;
}

// A block: a head of a block of rows, where each channel has its decay.
__global__ void __launch_bounds__(kWeightThreads)
    channel_kernel(GlaArgs a, int first_block, int blocks, Weights to) {
  __shared__ float weight[kBlockRows];
  let_next_start();
  wait_for_previous();
  const int number = static_cast<int>(blockIdx.x) / a.H, thread = static_cast<int>(threadIdx.x);
  const RowBlock rows = row_block(a.seqs, a.chunk, number / blocks, first_block + number % blocks);
  if (rows.L == 0) return;
  const Head head{a, rows.first, static_cast<int>(blockIdx.x) % a.H};
  BlockWeights& weights = to.blocks[blockIdx.x];
  if (thread < kBlockRows) {
    weight[thread] = thread < rows.L ? head.weight(thread) : 0;
    weights.e[thread] = weights.w[thread] = weights.floor[thread] = thread < rows.L ? 1 : 0;
  }
  __syncthreads();
  const auto at = [&](int t) {
    return ((static_cast<int64_t>(number) * kBlockRows + t) * a.H + head.head) * to.pitch;
  };
  for (int i = 0; i < kBlockRows / kWeightWarps; ++i) {
    const int t = row_of_warp(i);
    weigh_query(head, weight, t, rows.L, to.q + at(t), weights.P[t]);
  }
  for (int x = thread; x < a.DK; x += kWeightThreads) {
    float G = 0;
    for (int j = rows.L - 1; j >= 0; --j) {
      to.k[at(j) + x] = weight[j] * head.k(j, x) * expf(G);
      G += head.g(j, x);
    }
    to.F[static_cast<int64_t>(blockIdx.x) * a.DK + x] = expf(G);
  }
}

void find_weights(const GlaArgs& args, int first_block, int blocks, const Weights& to,
                  Stream& stream) {
  const LaunchShape shape{.grid = static_cast<unsigned>(args.seqs.num_seqs * blocks * args.H),
                          .threads = kWeightThreads};
  if (args.decay == GlaDecay::kChannel) {
    launch_early(stream, "gla, weights of chunks", channel_kernel, shape, args, first_block, blocks,
                 to);
  } else {
    launch_early(stream, "gla, weights of chunks", head_kernel, shape, args, first_block, blocks,
                 to.blocks);
  }
}

}  // namespace

void gla_chunks(const GlaArgs& args, Stream& stream) {
  const std::span<std::byte> scratch = static_cast<CudaStream&>(stream).scratch();
  const auto launch = [&](const Ragged& seqs, int first_block, int blocks) {
    GlaArgs part = args;
    part.seqs = seqs;
    const Weights weights = lay_out(part, seqs.num_seqs * blocks, scratch.data());
    find_weights(part, first_block, blocks, weights, stream);
    const bool channels = args.decay == GlaDecay::kChannel;
    const RowsOfHeads q{args.q, args.q_stride, 1, args.DK}, k{args.k, args.k_stride, 1, args.DK};
    const int64_t stride = static_cast<int64_t>(args.H) * weights.pitch;
    matrix_chunks({.seqs = seqs,
                   .H = args.H,
                   .DK = args.DK,
                   .DV = args.DV,
                   .chunk = args.chunk,
                   .first_block = first_block,
                   .blocks = blocks,
                   .weights = weights.blocks,
                   .F = weights.F,
                   .q = channels ? RowsOfHeads{weights.q, stride, 1, weights.pitch} : q,
                   .k = channels ? RowsOfHeads{weights.k, stride, 1, weights.pitch} : k,
                   .by_block = channels,
                   .v = {args.v, args.v_stride, 1, args.DV},
                   .S = args.S,
                   .keys_inner = false,
                   .z = args.z,
                   .eps = args.eps,
                   .bounded = args.bounded,
                   .skip = nullptr,
                   .o = args.o},
                  stream);
  };
  for_each_wave(args.seqs, args.chunk, block_bytes(args), scratch.size(), launch);
}

}  // namespace recurve::cuda::sm80
