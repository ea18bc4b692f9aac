#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/capabilities.h"
#include "kernels/cuda/sm90/matrix/tile_scan.h"
#include "kernels/cuda/sm90/matrix/tile_scan_outputs.cuh"
#include "kernels/cuda/sm90/matrix/tile_scan_rounding.cuh"
#include "kernels/cuda/sm90/matrix/tile_scan_state.cuh"

namespace recurve::cuda::sm90 {
namespace tile_scan {
namespace {

// A block: the queries or the keys of a group of a tile.
constexpr int kRoundThreads = 256;
__global__ void __launch_bounds__(kRoundThreads) round_kernel(TileChunkArgs a) {
  let_next_start();
  wait_for_previous();
  const int groups = a.groups(), number = static_cast<int>(blockIdx.x) / groups;
  const int group = static_cast<int>(blockIdx.x) % groups;
  const RowBlock rows =
      sm80::tile_rows(a.seqs, a.chunk, number / a.tiles, a.first_tile + number % a.tiles);
  if (rows.L == 0) return;
  const sm80::RowsOfHeads& of = blockIdx.y == 0 ? a.q : a.k;
  const float* from = of.data + static_cast<int64_t>(rows.first) * of.stride +
                      static_cast<int64_t>(group) * of.width;
  uint16_t* to =
      (blockIdx.y == 0 ? a.scratch.q : a.scratch.k) + int64_t{blockIdx.x} * kTileRows * a.DK;
  const int pieces = a.DK / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kTileRows * pieces; i += kRoundThreads) {
    const int t = i / pieces, piece = i % pieces;
    uint4 eight = make_uint4(0, 0, 0, 0);
    if (t < rows.L) {
      const auto* here = reinterpret_cast<const float4*>(from + t * of.stride + 8 * piece);
      const float4 low = here[0], high = here[1];
      eight = make_uint4(round_bf16(low.x, low.y), round_bf16(low.z, low.w),
                         round_bf16(high.x, high.y), round_bf16(high.z, high.w));
    }
    *reinterpret_cast<uint4*>(to + swizzled_at(t, piece)) = eight;
  }
}

template <int kDK>
__device__ void init_barriers(Shared<kDK>& s) {
  using S = Shape<kDK>;
  constexpr int kWarps = kGroupThreads / kWarpSize, kRounding = kRoundingThreads / kWarpSize;
  constexpr int kStateWarps = S::kStateGroups * kWarps;
  for (int i = 0; i < S::kStages; ++i) {
    init_barrier(&s.full[i], 1);
    init_barrier(&s.empty[i], kWarps + kStateWarps + kRounding);  // of outputs, state and rounding
    init_barrier(&s.passed[i], kStateWarps);
  }
  init_barrier(&s.arrived, S::kStateThreads);
  for (int i = 0; i < kOutputGroups; ++i) {
    init_barrier(&s.rounded_full[i], kRoundingThreads);
    init_barrier(&s.rounded_empty[i], kWarps);
    init_barrier(&s.state_full[i], S::kStateThreads);
    init_barrier(&s.state_empty[i], kWarps);
  }
  publish_barriers();
}

// A block: some columns of a head of a sequence, and a segment of its tiles.
template <typename T, int kDK, bool kChannels>
__global__ void __launch_bounds__(Shape<kDK>::kThreads, 1)
    scan_kernel(const __grid_constant__ CUtensorMap v, const __grid_constant__ TileChunkArgs a) {
  extern __shared__ __align__(1024) std::byte scan_memory[];
  Shared<kDK>& s = *reinterpret_cast<Shared<kDK>*>(scan_memory);
  let_next_start();
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarpSize, 0);
  using Block = Shape<kDK>;
  if (threadIdx.x == Block::kCopyWarp * kWarpSize) {
    prefetch_map(v);
    init_barriers(s);
  }
  __syncthreads();
  wait_for_previous();
  // This is the same for a whole warp, which the compiler has to see.
  const int group = warp / (kGroupThreads / kWarpSize);
  const bool has_state = group >= kFirstStateGroup && group < Block::kLastGroup;
  if (a.segments > 1 && !has_state) arrive_in_cluster();
  if (group < kOutputGroups) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Block::kOutputRegisters));
    make_outputs<kDK, kChannels>(a, s, group);
  } else if (has_state) {
    if (Block::kWide) {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Block::kStateRegisters));
    }
    bring_state<T, kDK, kChannels>(a, s);
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Block::kOtherRegisters));
    if (warp > Block::kCopyWarp) {
      round_tiles<kDK>(a, s);
    } else if (threadIdx.x == Block::kCopyWarp * kWarpSize) {
      load_tiles<kDK, kChannels>(a, v, s);
    }
  }
}

template <typename T, int kDK, bool kChannels>
void launch_scan(const TileChunkArgs& args, Stream& stream) {
  constexpr size_t kBytes = sizeof(Shared<kDK>);
  const auto kernel = scan_kernel<T, kDK, kChannels>;
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(kBytes)),
                  "tiles, shared memory");
  const CUtensorMap v =
      tensor_map(args.v.data, args.seqs.rows, args.H * args.DV, args.v.stride, kTileRows);
  launch_early(stream, "tiles, scan", kernel,
               {.grid = static_cast<unsigned>(args.seqs.num_seqs * args.H * (args.DV / kColumns) *
                                              args.segments),
                .threads = Shape<kDK>::kThreads,
                .shared = kBytes,
                .cluster = static_cast<unsigned>(args.segments)},
               v, args);
}

template <typename T, int kDK>
void launch(const TileChunkArgs& args, Stream& stream) {
  if (args.channels) return launch_scan<T, kDK, true>(args, stream);
  launch_scan<T, kDK, false>(args, stream);
}

// A block: the normaliser of a head of a sequence, tile after tile, and the stabiliser behind them.
constexpr int kNormaliserThreads = 64;
constexpr int kTilesAtOnce = 16;  // whose values are on their way
__global__ void __launch_bounds__(kNormaliserThreads) normaliser_kernel(TileChunkArgs a) {
  let_next_start();
  wait_for_previous();
  const int parts = a.DK / kNormaliserThreads, of_all = static_cast<int>(blockIdx.x) / parts;
  const int sequence = of_all / a.H, head = of_all % a.H;
  const int x =
      static_cast<int>(blockIdx.x) % parts * kNormaliserThreads + static_cast<int>(threadIdx.x);
  const int length = sm80::step_rows(a.seqs, a.chunk, sequence).first - a.seqs.begin[sequence];
  const int tiles = min(a.tiles, (length + kTileRows - 1) / kTileRows - a.first_tile);
  if (tiles <= 0) return;
  const int64_t kept_head = static_cast<int64_t>(a.seqs.slot[sequence]) * a.H + head;
  const int64_t first = static_cast<int64_t>(sequence) * a.tiles * a.H + head;
  float z = a.z[kept_head * a.DK + x];
  for (int from = 0; from < tiles; from += kTilesAtOnce) {
    float F[kTilesAtOnce], added[kTilesAtOnce];
#pragma unroll
    for (int i = 0; i < kTilesAtOnce; ++i) {
      const int64_t at = first + static_cast<int64_t>(min(from + i, tiles - 1)) * a.H;
      F[i] = a.scratch.weights[at].F;
      added[i] = a.scratch.z_added[at * a.DK + x];
    }
#pragma unroll
    for (int i = 0; i < kTilesAtOnce; ++i) {
      if (from + i >= tiles) break;
      a.scratch.z[(first + static_cast<int64_t>(from + i) * a.H) * a.DK + x] = z;
      z = fmaf(F[i], z, added[i]);
    }
  }
  a.z[kept_head * a.DK + x] = z;
  if (x == 0 && a.m != nullptr) {
    a.m[kept_head] = a.scratch.m_after[first + static_cast<int64_t>(tiles - 1) * a.H];
  }
}

// A block: e q z of the rows of a head of a tile. A thread has a half of the keys of a row.
constexpr int kRowThreads = 2 * kTileRows;
constexpr int kMostKeys = 256;
__global__ void __launch_bounds__(kRowThreads) normaliser_rows_kernel(TileChunkArgs a) {
  __shared__ float z[kMostKeys], halves[kTileRows];
  let_next_start();
  wait_for_previous();
  const int number = static_cast<int>(blockIdx.x) / a.H, head = static_cast<int>(blockIdx.x) % a.H;
  const RowBlock rows =
      sm80::tile_rows(a.seqs, a.chunk, number / a.tiles, a.first_tile + number % a.tiles);
  if (rows.L == 0) return;
  const int64_t at = blockIdx.x;
  for (int x = static_cast<int>(threadIdx.x); x < a.DK; x += kRowThreads) {
    z[x] = a.scratch.z[at * a.DK + x];
  }
  __syncthreads();
  const int t = static_cast<int>(threadIdx.x) % kTileRows, half = threadIdx.x / kTileRows;
  const int64_t group = static_cast<int64_t>(number) * a.groups() + head / a.q.heads;
  const uint16_t* q = a.scratch.q + group * kTileRows * a.DK;
  const int pieces = a.DK / 16;  // of a half
  float sum = 0;
  for (int i = half * pieces; i < (half + 1) * pieces; ++i) {
    const uint4 eight = *reinterpret_cast<const uint4*>(q + swizzled_at(t, i));
    const float* with = z + 8 * i;
    const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      sum = fmaf(__uint_as_float(pairs[j] << 16), with[2 * j], sum);
      sum = fmaf(__uint_as_float(pairs[j] & 0xffff0000u), with[2 * j + 1], sum);
    }
  }
  if (half == 1) halves[t] = sum;
  __syncthreads();
  if (half == 1) return;
  TileWeights& weights = a.scratch.weights[at];
  weights.eqz[t] = weights.e[t] * (sum + halves[t]);
}

}  // namespace
}  // namespace tile_scan

static_assert(tile_scan::kPairPieces * sizeof(uint4) == kScanPairBytes);
static_assert(sizeof(sm80::TileWeights) == kScanWeightBytes && sm80::kTileRows == kScanRows &&
              tile_scan::kColumns == kScanColumns);

sm80::TileWave scan_wave(const sm80::TileChunkArgs& args, int sequences, size_t scratch_bytes) {
  const auto of_chunk = static_cast<size_t>(sm80::blocks_of_chunk<sm80::kTileRows>(args.chunk));
  const size_t tile = args.channels
                          ? scan_channel_tile_bytes(args.H, args.DK)
                          : scan_tile_bytes(args.groups(), args.H, args.DK, args.z != nullptr);
  const size_t each = tile * static_cast<size_t>(sequences);
  const int tiles = static_cast<int>(scratch_bytes / each / of_chunk * of_chunk);
  return {.tiles = tiles, .part_tiles = tiles};
}

sm80::TileScratch lay_out_scan(const sm80::TileChunkArgs& args, std::span<std::byte> memory) {
  const int64_t tiles = int64_t{args.seqs.num_seqs} * args.tiles;
  const int64_t heads = tiles * args.H;
  sm80::TileScratch scratch{};
  scratch.part = 64;
  scratch.q = reinterpret_cast<uint16_t*>(memory.data());
  scratch.k = scratch.q + tiles * args.groups() * sm80::kTileRows * args.DK;
  scratch.weights = reinterpret_cast<sm80::TileWeights*>(scratch.k + tiles * args.groups() *
                                                                         sm80::kTileRows * args.DK);
  if (args.channels) {
    scratch.F = reinterpret_cast<float*>(scratch.weights);
    scratch.pairs = reinterpret_cast<uint4*>(scratch.F + heads * args.DK);
  }
  if (args.z == nullptr) return scratch;
  scratch.changes = reinterpret_cast<double*>(scratch.weights + heads);
  scratch.z_added = reinterpret_cast<float*>(scratch.changes + 2 * heads);
  scratch.z = scratch.z_added + heads * args.DK;
  scratch.m_after = scratch.z + heads * args.DK;
  return scratch;
}

void round_for_scan(const sm80::TileChunkArgs& args, Stream& stream) {
  const int blocks = args.seqs.num_seqs * args.tiles * args.groups();
  launch_early(
      stream, "tiles, rounding", tile_scan::round_kernel,
      {.grid = dim3(static_cast<unsigned>(blocks), 2), .threads = tile_scan::kRoundThreads}, args);
}

void find_normalisers(const sm80::TileChunkArgs& args, Stream& stream) {
  using namespace tile_scan;
  const int heads = args.seqs.num_seqs * args.H;
  launch_early(stream, "tiles, normaliser", normaliser_kernel,
               {.grid = static_cast<unsigned>(heads * (args.DK / kNormaliserThreads)),
                .threads = kNormaliserThreads},
               args);
  launch_early(stream, "tiles, normaliser of rows", normaliser_rows_kernel,
               {.grid = static_cast<unsigned>(heads * args.tiles), .threads = kRowThreads}, args);
}

void scan_tiles(const sm80::TileChunkArgs& all, Stream& stream) {
  sm80::TileChunkArgs args = all;
  const int blocks = args.seqs.num_seqs * args.H * (args.DV / tile_scan::kColumns);
  args.segments = tile_segments(blocks, static_cast<CudaStream&>(stream).multiprocessors());
  sm80::with_state_type(args.S.dtype, [&](auto element) {
    using T = decltype(element);
    if (args.DK == 64) return tile_scan::launch<T, 64>(args, stream);
    if (args.DK == 128) return tile_scan::launch<T, 128>(args, stream);
    tile_scan::launch<T, 256>(args, stream);
  });
}

}  // namespace recurve::cuda::sm90
