#pragma once
#include <algorithm>

#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/tile.cuh"

// The first two passes of the form by tiles, and all four in turn. What a recurrence's gates make
// of a row is a Gates:
//   static constexpr bool kStabilised;           whether exponents are relative to a stabiliser
//   RowGate at(int64_t row, int head) const;     device
namespace recurve::cuda::sm80 {

// The row's key weighs exp(log_weight) weight; without a stabiliser log_weight is 0.
struct RowGate {
  float log_decay = 0, log_weight = 0, weight = 0;
};

constexpr int kProductThreads = 256, kTileWeightThreads = 128;

// The sum of log decays of the rows of a tile up to and including each, and, with a stabiliser, the
// greatest log weight of a row so far at each row, less that. In fp64: their differences count.
// To be called by a warp, whose lanes have two rows each; rows past L have gates of zeros.
struct LaneDecays {
  double sum[2], most[2];
  float weight[2], log_weight[2];

  template <typename Gates>
  __device__ LaneDecays(const Gates& gates, const RowBlock& rows, int head) {
    constexpr double kNone = -INFINITY;
    const int lane = threadIdx.x % kWarpSize;
    RowGate gate[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = 2 * lane + i;
      if (t < rows.L) gate[i] = gates.at(rows.first + t, head);
      weight[i] = gate[i].weight;
      log_weight[i] = gate[i].log_weight;
    }
    double total = static_cast<double>(gate[0].log_decay) + gate[1].log_decay;
    for (int step = 1; step < kWarpSize; step *= 2) {
      const double before = __shfl_up_sync(0xffffffffu, total, step);
      if (lane >= step) total += before;
    }
    sum[1] = total;
    const double left = __shfl_up_sync(0xffffffffu, total, 1);
    sum[0] = (lane > 0 ? left : 0) + gate[0].log_decay;
    if constexpr (!Gates::kStabilised) return;
    const double first = 2 * lane < rows.L ? log_weight[0] - sum[0] : kNone;
    const double second = 2 * lane + 1 < rows.L ? log_weight[1] - sum[1] : kNone;
    double greatest = fmax(first, second);
    for (int step = 1; step < kWarpSize; step *= 2) {
      const double before = __shfl_up_sync(0xffffffffu, greatest, step);
      if (lane >= step) greatest = fmax(greatest, before);
    }
    most[1] = greatest;
    const double before = __shfl_up_sync(0xffffffffu, greatest, 1);
    most[0] = fmax(lane > 0 ? before : kNone, first);
  }
};

// Eight values side by side, rounded.
__device__ inline uint4 round_piece(const float* from) {
  const float4 low = *reinterpret_cast<const float4*>(from);
  const float4 high = *reinterpret_cast<const float4*>(from + 4);
  return make_uint4(round_bf16(low.x, low.y), round_bf16(low.z, low.w), round_bf16(high.x, high.y),
                    round_bf16(high.z, high.w));
}

// Rounds a tile's rows of a group into shared memory and scratch; zeros where there are no rows.
template <int kDK>
__device__ void round_tile(const RowsOfHeads& rows, int group, const RowBlock& of, uint16_t* shared,
                           uint16_t* scratch) {
  constexpr int kPieces = kDK / 8;
  const float* from = rows.data + static_cast<int64_t>(of.first) * rows.stride +
                      static_cast<int64_t>(group) * rows.width;
#pragma unroll 4
  for (int i = threadIdx.x; i < kTileRows * kPieces; i += kProductThreads) {
    const int t = i / kPieces, piece = i % kPieces;
    uint4 eight = make_uint4(0, 0, 0, 0);
    if (t < of.L) eight = round_piece(from + static_cast<int64_t>(t) * rows.stride + 8 * piece);
    const int at = piece_at(t, piece, kDK);
    *reinterpret_cast<uint4*>(shared + at) = eight;
    *reinterpret_cast<uint4*>(scratch + at) = eight;
  }
}

// A block: a group of a tile. Its queries and keys rounded, their products, and what its gates do
// to the stabiliser (a group is a head then).
template <typename Gates, int kDK>
__global__ void __launch_bounds__(kProductThreads)
    tile_products_kernel(TileChunkArgs a, Gates gates) {
  extern __shared__ uint4 tile_memory[];
  let_next_start();
  wait_for_previous();
  const int groups = a.groups();
  const int group = static_cast<int>(blockIdx.x) % groups;
  const int number = static_cast<int>(blockIdx.x) / groups;
  const RowBlock rows =
      tile_rows(a.seqs, a.chunk, number / a.tiles, a.first_tile + number % a.tiles);
  if (rows.L == 0) return;
  constexpr int kValues = kTileRows * kDK;
  auto* q = reinterpret_cast<uint16_t*>(tile_memory);
  uint16_t* k = q + kValues;
  const int64_t at = blockIdx.x;
  round_tile<kDK>(a.q, group, rows, q, a.scratch.q + at * kValues);
  round_tile<kDK>(a.k, group, rows, k, a.scratch.k + at * kValues);
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  if constexpr (Gates::kStabilised) {
    if (warp == 0) {
      const LaneDecays decays(gates, rows, group);
      if (threadIdx.x == kWarpSize - 1) {
        a.scratch.changes[2 * at] = decays.sum[1];
        a.scratch.changes[2 * at + 1] = decays.sum[1] + decays.most[1];
      }
    }
  }
  __syncthreads();

  const int t0 = warp % 4 * 16, j0 = warp / 4 * 32;
  if (j0 > t0 + 15) return;  // keys that come later
  const TileMatrix<kDK> Q(q), K(k);
  float sums[4][4] = {};
#pragma unroll 4
  for (int x = 0; x < kDK; x += 16) {
    uint32_t left[4], right[4];
    Q.load_left(left, t0, x);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      K.load_right(right, j0 + 16 * n, x);
      multiply_bf16(sums[2 * n], left, right[0], right[1]);
      multiply_bf16(sums[2 * n + 1], left, right[2], right[3]);
    }
  }
  const int g = threadIdx.x % kWarpSize / 4, pair = threadIdx.x % 4;
  float* products = a.scratch.products + at * kTileRows * kTileRows;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = t0 + g + 8 * half, j = j0 + 8 * n + 2 * pair;
      *reinterpret_cast<float2*>(products + t * kTileRows + j) =
          make_float2(sums[n][2 * half], sums[n][2 * half + 1]);
    }
  }
}

// The stabiliser before a tile: what the tiles before it have made of the one in the state. By a
// warp.
template <typename Gates>
__device__ double stabiliser_before(const TileChunkArgs& a, int sequence, int tile, int head) {
  if constexpr (!Gates::kStabilised) return 0;
  const int lane = threadIdx.x % kWarpSize;
  const double* changes =
      a.scratch.changes + 2 * (static_cast<int64_t>(sequence) * a.tiles * a.H + head);
  float m = a.m[static_cast<int64_t>(a.seqs.slot[sequence]) * a.H + head];
  for (int first = 0; first < tile; first += kWarpSize) {
    const double* mine = changes + 2 * static_cast<int64_t>(min(first + lane, tile - 1)) * a.H;
    const double added = mine[0], least = mine[1];
    for (int i = 0; i < min(kWarpSize, tile - first); ++i) {
      m = static_cast<float>(
          fmax(__shfl_sync(0xffffffffu, added, i) + m, __shfl_sync(0xffffffffu, least, i)));
    }
  }
  return m;
}

// A coarse and a fine part of an exponent, of 2.
__device__ inline void keep_exponent(double exponent, float& coarse, float& fine) {
  constexpr double kLog2OfE = 1.4426950408889634;
  coarse = static_cast<float>(exponent * kLog2OfE);
  fine = static_cast<float>(exponent * kLog2OfE - coarse);
}

// The weights of a head of a tile, by a warp. scale: of the queries.
template <typename Gates>
__device__ void find_weights(const TileChunkArgs& a, const Gates& gates, float scale, int sequence,
                             int tile, const RowBlock& rows, int head, int64_t at) {
  const int lane = threadIdx.x % kWarpSize;
  const LaneDecays decays(gates, rows, head);
  const double before = stabiliser_before<Gates>(a, sequence, tile, head);
  const double whole = __shfl_sync(0xffffffffu, decays.sum[1], kWarpSize - 1);
  float m[2] = {0, 0};
  if constexpr (Gates::kStabilised) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      m[i] = static_cast<float>(fmax(decays.sum[i] + before, decays.sum[i] + decays.most[i]));
    }
  }
  const float m_after = __shfl_sync(0xffffffffu, m[1], kWarpSize - 1);
  TileWeights& to = a.scratch.weights[at];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int t = 2 * lane + i;
    const bool there = t < rows.L;
    const double after = decays.sum[i] - m[i], from = decays.sum[i] - decays.log_weight[i];
    to.e[t] = there ? scale * expf(static_cast<float>(after + before)) : 0;
    to.w[t] = there ? expf(static_cast<float>(whole - from - m_after)) * decays.weight[i] : 0;
    to.weight[t] = scale * decays.weight[i];
    to.floor[t] = Gates::kStabilised ? expf(-m[i]) : 1;
    keep_exponent(after, to.after[t], to.after_fine[t]);
    keep_exponent(from, to.before[t], to.before_fine[t]);
  }
  if (lane != 0) return;
  to.F = expf(static_cast<float>(whole + before - m_after));
  if constexpr (Gates::kStabilised) a.scratch.m_after[at] = m_after;
}

// A block: some heads of a tile, a warp each; where there is a normaliser, all of it one head.
template <typename Gates>
__global__ void __launch_bounds__(kTileWeightThreads)
    tile_weights_kernel(TileChunkArgs a, Gates gates, float scale) {
  let_next_start();
  wait_for_previous();
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int together = a.z != nullptr ? 1 : kTileWeightThreads / kWarpSize;
  const int of_tile = (a.H + together - 1) / together;
  const int number = static_cast<int>(blockIdx.x) / of_tile;
  const int head = static_cast<int>(blockIdx.x) % of_tile * together + (a.z != nullptr ? 0 : warp);
  const int sequence = number / a.tiles, tile = number % a.tiles;
  const RowBlock rows = tile_rows(a.seqs, a.chunk, sequence, a.first_tile + tile);
  if (rows.L == 0 || head >= a.H) return;
  const int64_t at = static_cast<int64_t>(number) * a.H + head;
  if (a.z == nullptr || warp == 0) {
    find_weights(a, gates, scale, sequence, tile, rows, head, at);
  }
  if (a.z == nullptr) return;
  __syncthreads();
  const float* w = a.scratch.weights[at].w;
  const int64_t group = static_cast<int64_t>(number) * a.groups() + head / a.q.heads;
  const uint16_t* k = a.scratch.k + group * kTileRows * a.DK;
  for (int x = 2 * static_cast<int>(threadIdx.x); x < a.DK; x += 2 * kTileWeightThreads) {
    float2 z = make_float2(0, 0);
#pragma unroll 16
    for (int t = 0; t < kTileRows; ++t) {
      const uint32_t two =
          *reinterpret_cast<const uint32_t*>(k + piece_in_parts(t, x / 8, a.scratch.part) + x % 8);
      z.x = fmaf(w[t], __uint_as_float(two << 16), z.x);
      z.y = fmaf(w[t], __uint_as_float(two & 0xffff0000u), z.y);
    }
    *reinterpret_cast<float2*>(a.scratch.z_added + at * a.DK + x) = z;
  }
}

template <typename Gates>
void find_weights(const TileChunkArgs& args, const Gates& gates, float scale, Stream& stream) {
  const int together = args.z != nullptr ? 1 : kTileWeightThreads / kWarpSize;
  launch_early(
      stream, "tiles, weights", tile_weights_kernel<Gates>,
      {.grid = static_cast<unsigned>(args.seqs.num_seqs * args.tiles * ceil_div(args.H, together)),
       .threads = kTileWeightThreads},
      args, gates, scale);
}

template <typename Gates, int kDK>
void launch_products(const TileChunkArgs& args, const Gates& gates, Stream& stream) {
  constexpr size_t kBytes = 2 * sizeof(uint16_t) * kTileRows * kDK;
  const auto kernel = tile_products_kernel<Gates, kDK>;
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(kBytes)),
                  "tiles, shared memory");
  launch_early(stream, "tiles, products", kernel,
               {.grid = static_cast<unsigned>(args.seqs.num_seqs * args.tiles * args.groups()),
                .threads = kProductThreads,
                .shared = kBytes},
               args, gates);
}

template <typename Gates>
void find_products(const TileChunkArgs& args, const Gates& gates, Stream& stream) {
  switch (args.DK) {
    case 32:
      return launch_products<Gates, 32>(args, gates, stream);
    case 64:
      return launch_products<Gates, 64>(args, gates, stream);
    case 128:
      return launch_products<Gates, 128>(args, gates, stream);
    default:
      return launch_products<Gates, 256>(args, gates, stream);
  }
}

// Calls visit(args, wave) for all tiles of the sequences in the order of their time: with
// args.tiles of some of the sequences from args.first_tile on, so many at once as scratch memory
// holds. wave_of(sequences): how many that are, 0 tiles where they do not fit. The state is
// stored, and may be rounded, after each visit: so all but the last end with a chunk.
template <typename WaveOf, typename Visit>
void for_each_tile_wave(const TileChunkArgs& all, WaveOf wave_of, Visit visit) {
  const int total = blocks_of_sequence<kTileRows>(all.seqs.max_len, all.chunk);
  // A part of fewer tiles of each sequence is worth less than fewer sequences at once.
  constexpr int kFewTiles = 8;
  int together = all.seqs.num_seqs;
  const auto too_many = [&](int sequences) {
    const TileWave wave = wave_of(sequences);
    return wave.tiles == 0 || wave.part_tiles < std::min(total, kFewTiles);
  };
  while (together > 1 && too_many(together)) {
    together = ceil_div(together, 2);
  }
  for (int first = 0; first < all.seqs.num_seqs; first += together) {
    TileChunkArgs args = all;
    args.seqs.num_seqs = std::min(together, all.seqs.num_seqs - first);
    args.seqs.begin += first;
    args.seqs.slot += first;
    const TileWave wave = wave_of(args.seqs.num_seqs);
    for (int tile = 0; tile < total; tile += wave.tiles) {
      args.first_tile = tile;
      args.tiles = std::min(wave.tiles, total - tile);
      visit(args, wave);
    }
  }
}

// All passes over all tiles of the sequences. scale: of the queries.
template <typename Gates>
void tile_chunks(const TileChunkArgs& all, const Gates& gates, float scale, Stream& stream) {
  const std::span<std::byte> scratch = static_cast<CudaStream&>(stream).scratch();
  const auto wave_of = [&](int sequences) { return tile_wave(all, sequences, scratch.size()); };
  for_each_tile_wave(all, wave_of, [&](TileChunkArgs& args, const TileWave& wave) {
    args.scratch = lay_out_tiles(args, scratch);
    find_products(args, gates, stream);
    find_weights(args, gates, scale, stream);
    for (args.part_first = 0; args.part_first < args.tiles; args.part_first += wave.part_tiles) {
      args.part_tiles = std::min(wave.part_tiles, args.tiles - args.part_first);
      tile_states(args, stream);
      tile_outputs(args, stream);
    }
  });
}

}  // namespace recurve::cuda::sm80
