// The chunk form. Where each channel has a decay, queries and keys get theirs before they
// are multiplied: the queries since the start of their block of rows, the keys up to its end, so
// that no exponent is positive.
#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/matrix/chunk_weights.cuh"
#include "kernels/cuda/sm80/matrix/gla_chunk.h"

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

// What a thread has of a channel: its values in all rows of the block, zeros behind the last.
struct Channel {
  float q[kBlockRows], k[kBlockRows], g[kBlockRows];
};
__device__ Channel channel_at(const Head& head, const float* weight, int L, int x) {
  Channel c;
#pragma unroll
  for (int t = 0; t < kBlockRows; ++t) {
    const bool there = t < L && x < head.a.DK;
    c.q[t] = there ? head.a.scale * head.q(t, x) : 0;
    c.k[t] = there ? weight[t] * head.k(t, x) : 0;
    c.g[t] = there ? head.g(t, x) : 0;
  }
  return c;
}

// The channel's queries with their decays since the start of the block of rows, its keys with those
// up to the end.
__device__ void keep_channel(const Channel& c, const Head& head, int L, int x, int number,
                             const Weights& to) {
  const auto at = [&](int t) {
    return ((static_cast<int64_t>(number) * kBlockRows + t) * head.a.H + head.head) * to.pitch + x;
  };
  float G = 0;
#pragma unroll
  for (int t = 0; t < kBlockRows; ++t) {
    G += c.g[t];
    if (t < L) to.q[at(t)] = c.q[t] * expf(G);
  }
  G = 0;
#pragma unroll
  for (int t = kBlockRows - 1; t >= 0; --t) {
    if (t < L) to.k[at(t)] = c.k[t] * expf(G);
    G += c.g[t];
  }
  to.F[(static_cast<int64_t>(number) * head.a.H + head.head) * head.a.DK + x] = expf(G);
}

// kWeightThreads channels of the block's rows.
struct Slice {
  static constexpr int kPitch = kWeightThreads + 4;  // no two lanes share a bank
  float q[kBlockRows][kPitch], k[kBlockRows][kPitch];
};

// Where rows are halved, the queries behind each middle with the decays since then, and the keys
// before it with those up to it. kHalf: rows.
template <int kHalf>
__device__ void weigh_halves(const Channel& c, Slice& slice) {
#pragma unroll
  for (int middle = kHalf; middle < kBlockRows; middle += 2 * kHalf) {
    float G = 0;
#pragma unroll
    for (int t = middle; t < middle + kHalf; ++t) {
      G += c.g[t];
      slice.q[t][threadIdx.x] = c.q[t] * expf(G);
    }
    G = 0;
#pragma unroll
    for (int j = middle - 1; j >= middle - kHalf; --j) {
      slice.k[j][threadIdx.x] = c.k[j] * expf(G);
      G += c.g[j];
    }
  }
}

// Adds what the warp's channels bring to the products of those rows that `half` parts: 0, of a row
// with itself.
__device__ void add_products(const Slice& slice, int half, LaneProducts& products) {
  const int x0 = static_cast<int>(threadIdx.x) / kWarpSize * kWarpSize;
  const int g = threadIdx.x % kWarpSize / 4, q = threadIdx.x % 4;
  TileSum sums[kBlockRows / 8];
#pragma unroll
  for (int x = x0 + q; x < x0 + q + kWarpSize; x += 8) {
    const LeftTile rows{{cut(slice.q[g][x]), cut(slice.q[g + 8][x]), cut(slice.q[g][x + 4]),
                         cut(slice.q[g + 8][x + 4])}};
#pragma unroll
    for (int n = 0; n < kBlockRows / 8; ++n) {
      sums[n].add(rows, {{cut(slice.k[8 * n + g][x]), cut(slice.k[8 * n + g][x + 4])}});
    }
  }
#pragma unroll
  for (int n = 0; n < kBlockRows / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int apart = (g + i / 2 * 8) ^ (8 * n + 2 * q + i % 2);
      if (half <= apart && apart < max(1, 2 * half)) products[n][i] += sums[n].value(i);
    }
  }
}

template <int kHalf>
__device__ void add_halves(const Channel& c, Slice& slice, LaneProducts& products) {
  __syncthreads();  // all are done with what was there
  weigh_halves<kHalf>(c, slice);
  __syncthreads();
  add_products(slice, kHalf, products);
}

// A block: a head of a block of rows, where each channel has its decay. Rows t and j < t meet at
// the middle between them when the rows are halved until it parts the two: with the decays since
// then and up to then, neither of which grows.
__global__ void __launch_bounds__(kWeightThreads)
    channel_kernel(GlaArgs a, int first_block, int blocks, Weights to) {
  __shared__ float weight[kBlockRows];
  __shared__ Slice slice;
  __shared__ RowProducts products;
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

  LaneProducts sums = {};
  for (int x0 = 0; x0 < a.DK; x0 += kWeightThreads) {
    const int x = x0 + thread;
    const Channel c = channel_at(head, weight, rows.L, x);
    if (x < a.DK) keep_channel(c, head, rows.L, x, number, to);
#pragma unroll
    for (int t = 0; t < kBlockRows; ++t) {
      slice.q[t][thread] = c.q[t];
      slice.k[t][thread] = c.k[t];
    }
    __syncthreads();
    add_products(slice, 0, sums);
    add_halves<1>(c, slice, sums);
    add_halves<2>(c, slice, sums);
    add_halves<4>(c, slice, sums);
    add_halves<8>(c, slice, sums);
    static_assert(kBlockRows == 16);
    __syncthreads();  // before the next channels
  }
  keep_products(sums, products);
  for (int at = thread; at < kBlockRows * kBlockRows; at += kWeightThreads) {
    const int t = at / kBlockRows, j = at % kBlockRows;
    weights.P[t][j] = t < rows.L && j <= t ? products.at(t, j) : 0;
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

size_t bytes_of_gla_block(const GlaArgs& a) {
  size_t floats = sizeof(BlockWeights) / sizeof(float);
  if (a.decay == GlaDecay::kChannel) {
    floats += static_cast<size_t>(2 * kBlockRows + 1) * static_cast<size_t>(pitch_of(a));
  }
  return sizeof(float) * floats * static_cast<size_t>(a.H);
}

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
  for_each_wave(args.seqs, args.chunk, bytes_of_gla_block(args), scratch.size(), launch);
}

}  // namespace recurve::cuda::sm80
