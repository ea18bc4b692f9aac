// Prompts of recurrences with one decay a head and row in one pass through their tiles.
#include <cstdlib>

#include "kernels/cuda/sm80/gla_chunk.h"
#include "kernels/cuda/sm80/gla_tiles.cuh"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm90/capabilities.h"
#include "kernels/cuda/sm90/ops.h"
#include "kernels/cuda/sm90/tile_scan.h"

namespace recurve::cuda::sm90 {

void run(const GlaArgs& args, Stream& stream) {
  const bool prompts = args.seqs.num_seqs > 0 && args.seqs.max_len > 1;
  if (!prompts || !gla_scans(args) || getenv("TRY_SCAN") == nullptr) return sm80::run(args, stream);
  const sm80::TileChunkArgs tiles = sm80::tiles_of(args);
  const std::span<std::byte> scratch = static_cast<CudaStream&>(stream).scratch();
  const auto wave_of = [&](int sequences) { return scan_wave(tiles, sequences, scratch.size()); };
  const sm80::GlaGates gates{args.decay, args.g, args.i, args.g_stride};
  sm80::for_each_tile_wave(tiles, wave_of, [&](sm80::TileChunkArgs& part, const sm80::TileWave&) {
    part.scratch = lay_out_scan(part, scratch);
    round_for_scan(part, stream);
    sm80::find_weights(part, gates, args.scale, stream);
    scan_tiles(part, stream);
  });
  sm80::gla_steps(args, stream);
}

}  // namespace recurve::cuda::sm90
