#include <cstdlib>

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/capabilities.h"
#include "kernels/cuda/sm90/tile_scan.h"
#include "kernels/cuda/sm90/tile_scan_outputs.cuh"
#include "kernels/cuda/sm90/tile_scan_rounding.cuh"
#include "kernels/cuda/sm90/tile_scan_state.cuh"

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
  constexpr int kWarps = kGroupThreads / kWarpSize, kRounding = kRoundingThreads / kWarpSize;
  for (int i = 0; i < kStages; ++i) {
    init_barrier(&s.full[i], 1);
    init_barrier(&s.empty[i], 2 * kWarps + kRounding);  // of outputs, state and rounding
    init_barrier(&s.passed[i], kWarps);
  }
  init_barrier(&s.arrived, kGroupThreads);
  for (int i = 0; i < kRounded; ++i) {
    init_barrier(&s.rounded_full[i], kRoundingThreads);
    init_barrier(&s.rounded_empty[i], kWarps);
  }
  for (int i = 0; i < kStates; ++i) {
    init_barrier(&s.state_full[i], kGroupThreads);
    init_barrier(&s.state_empty[i], kWarps);
  }
  publish_barriers();
}

// A block: some columns of a head of a sequence, and a segment of its tiles.
template <typename T, int kDK>
__global__ void __launch_bounds__(kThreads, 1)
    scan_kernel(const __grid_constant__ CUtensorMap v, const __grid_constant__ TileChunkArgs a) {
  extern __shared__ __align__(1024) std::byte scan_memory[];
  Shared<kDK>& s = *reinterpret_cast<Shared<kDK>*>(scan_memory);
  let_next_start();
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarpSize, 0);
  if (threadIdx.x == kCopyWarp * kWarpSize) {
    prefetch_map(v);
    init_barriers(s);
  }
  __syncthreads();
  wait_for_previous();
  if (a.segments > 1 && warp / (kGroupThreads / kWarpSize) != kStateGroup) arrive_in_cluster();
  // This is the same for a whole warp, which the compiler has to see.
  const int group = warp / (kGroupThreads / kWarpSize);
  if (group < kOutputGroups) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kOutputRegisters));
    make_outputs<kDK>(a, s, group);
  } else if (group == kStateGroup) {
    bring_state<T, kDK>(a, s);
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kOtherRegisters));
    if (warp > kCopyWarp) {
      round_tiles<kDK>(a, s);
    } else if (threadIdx.x == kCopyWarp * kWarpSize) {
      load_tiles<kDK>(a, v, s);
    }
  }
}

template <typename T, int kDK>
void launch(const TileChunkArgs& args, Stream& stream) {
  constexpr size_t kBytes = sizeof(Shared<kDK>);
  const auto kernel = scan_kernel<T, kDK>;
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(kBytes)),
                  "tiles, shared memory");
  const CUtensorMap v =
      tensor_map(args.v.data, args.seqs.rows, args.H * args.DV, args.v.stride, kTileRows);
  launch_early(stream, "tiles, scan", kernel,
               {.grid = static_cast<unsigned>(args.seqs.num_seqs * args.H * (args.DV / kColumns) *
                                              args.segments),
                .threads = kThreads,
                .shared = kBytes,
                .cluster = static_cast<unsigned>(args.segments)},
               v, args);
}

}  // namespace
}  // namespace tile_scan

static_assert(sizeof(sm80::TileWeights) == kScanWeightBytes && sm80::kTileRows == kScanRows &&
              tile_scan::kColumns == kScanColumns);

sm80::TileWave scan_wave(const sm80::TileChunkArgs& args, int sequences, size_t scratch_bytes) {
  const auto of_chunk = static_cast<size_t>(sm80::blocks_of_chunk<sm80::kTileRows>(args.chunk));
  const size_t each =
      scan_tile_bytes(args.groups(), args.H, args.DK) * static_cast<size_t>(sequences);
  const int tiles = static_cast<int>(scratch_bytes / each / of_chunk * of_chunk);
  return {.tiles = tiles, .part_tiles = tiles};
}

sm80::TileScratch lay_out_scan(const sm80::TileChunkArgs& args, std::span<std::byte> memory) {
  const int64_t tiles = int64_t{args.seqs.num_seqs} * args.tiles;
  sm80::TileScratch scratch{};
  scratch.q = reinterpret_cast<uint16_t*>(memory.data());
  scratch.k = scratch.q + tiles * args.groups() * sm80::kTileRows * args.DK;
  scratch.weights = reinterpret_cast<sm80::TileWeights*>(scratch.k + tiles * args.groups() *
                                                                         sm80::kTileRows * args.DK);
  return scratch;
}

void round_for_scan(const sm80::TileChunkArgs& args, Stream& stream) {
  const int blocks = args.seqs.num_seqs * args.tiles * args.groups();
  launch_early(
      stream, "tiles, rounding", tile_scan::round_kernel,
      {.grid = dim3(static_cast<unsigned>(blocks), 2), .threads = tile_scan::kRoundThreads}, args);
}

void scan_tiles(const sm80::TileChunkArgs& all, Stream& stream) {
  sm80::TileChunkArgs args = all;
  const int blocks = args.seqs.num_seqs * args.H * (args.DV / tile_scan::kColumns);
  const int multiprocessors = static_cast<CudaStream&>(stream).multiprocessors();
  const int most = getenv("TRY_SEGMENTS") ? atoi(getenv("TRY_SEGMENTS")) : 1;
  if (getenv("TRY_PERCENT")) args.percent = atoi(getenv("TRY_PERCENT"));
  while (2 * args.segments <= most && 2 * args.segments * blocks <= multiprocessors) {
    args.segments *= 2;
  }
  sm80::with_state_type(args.S.dtype, [&](auto element) {
    using T = decltype(element);
    if (args.DK == 64) return tile_scan::launch<T, 64>(args, stream);
    tile_scan::launch<T, 128>(args, stream);
  });
}

}  // namespace recurve::cuda::sm90
