// Mamba-2's prompts in one pass through their tiles.
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/ssd_chunk.h"
#include "kernels/cuda/sm80/ssd_tiles.cuh"
#include "kernels/cuda/sm90/capabilities.h"
#include "kernels/cuda/sm90/ops.h"
#include "kernels/cuda/sm90/tile_scan.h"

namespace recurve::cuda::sm90 {

void run(const SsdArgs& args, Stream& stream) {
  const bool prompts = args.seqs.num_seqs > 0 && args.seqs.max_len > 1;
  if (!prompts || !ssd_scans(args)) return sm80::run(args, stream);
  const sm80::TileChunkArgs tiles = sm80::tiles_of(args);
  const std::span<std::byte> scratch = static_cast<CudaStream&>(stream).scratch();
  const auto wave_of = [&](int sequences) { return scan_wave(tiles, sequences, scratch.size()); };
  const sm80::SsdGates gates{args};
  sm80::for_each_tile_wave(tiles, wave_of, [&](sm80::TileChunkArgs& part, const sm80::TileWave&) {
    part.scratch = lay_out_scan(part, scratch);
    round_for_scan(part, stream);
    sm80::find_weights(part, gates, 1, stream);
    scan_tiles(part, stream);
  });
  sm80::ssd_steps(args, stream);
}

}  // namespace recurve::cuda::sm90
