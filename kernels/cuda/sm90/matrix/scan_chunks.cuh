#pragma once
#include "kernels/cuda/sm80/matrix/tile_weights.cuh"
#include "kernels/cuda/sm90/matrix/tile_scan.h"

// All that the one pass through the tiles of sequences needs, in turn, and the pass itself. Gates:
// as in sm80/matrix/tile_weights.cuh.
namespace recurve::cuda::sm90 {

constexpr int kChangeThreads = 128;

// A warp: what a head of a tile does to the stabiliser.
template <typename Gates>
__global__ void __launch_bounds__(kChangeThreads)
    tile_changes_kernel(sm80::TileChunkArgs a, Gates gates) {
  let_next_start();
  wait_for_previous();
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kChangeThreads + threadIdx.x) / kWarpSize;
  const int number = static_cast<int>(at / a.H), head = static_cast<int>(at % a.H);
  if (number >= a.seqs.num_seqs * a.tiles) return;
  const sm80::RowBlock rows =
      sm80::tile_rows(a.seqs, a.chunk, number / a.tiles, a.first_tile + number % a.tiles);
  if (rows.L == 0) return;
  const sm80::LaneDecays decays(gates, rows, head);
  if (threadIdx.x % kWarpSize != kWarpSize - 1) return;
  a.scratch.changes[2 * at] = decays.sum[1];
  a.scratch.changes[2 * at + 1] = decays.sum[1] + decays.most[1];
}

template <typename Gates>
void find_changes(const sm80::TileChunkArgs& args, const Gates& gates, Stream& stream) {
  const int warps = args.seqs.num_seqs * args.tiles * args.H;
  launch_early(stream, "tiles, changes", tile_changes_kernel<Gates>,
               {.grid = static_cast<unsigned>(ceil_div(warps, kChangeThreads / kWarpSize)),
                .threads = kChangeThreads},
               args, gates);
}

// scale: of the queries.
template <typename Gates>
void scan_chunks(const sm80::TileChunkArgs& all, const Gates& gates, float scale, Stream& stream) {
  const std::span<std::byte> scratch = static_cast<CudaStream&>(stream).scratch();
  const auto wave_of = [&](int sequences) { return scan_wave(all, sequences, scratch.size()); };
  sm80::for_each_tile_wave(all, wave_of, [&](sm80::TileChunkArgs& part, const sm80::TileWave&) {
    part.scratch = lay_out_scan(part, scratch);
    round_for_scan(part, stream);
    if constexpr (Gates::kStabilised) find_changes(part, gates, stream);
    sm80::find_weights(part, gates, scale, stream);
    if (part.z != nullptr) find_normalisers(part, stream);
    scan_tiles(part, stream);
  });
}

}  // namespace recurve::cuda::sm90
