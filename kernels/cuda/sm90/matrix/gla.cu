// Prompts of recurrences with one decay a head and row in one pass through their tiles.
#include "kernels/cuda/sm80/matrix/gla_chunk.h"
#include "kernels/cuda/sm80/matrix/gla_tiles.cuh"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm90/capabilities.h"
#include "kernels/cuda/sm90/matrix/gla_channels.h"
#include "kernels/cuda/sm90/matrix/scan_chunks.cuh"
#include "kernels/cuda/sm90/ops.h"

namespace recurve::cuda::sm90 {
namespace {

void scan_channels(const sm80::TileChunkArgs& all, const GlaArgs& args, Stream& stream) {
  const std::span<std::byte> scratch = static_cast<CudaStream&>(stream).scratch();
  const auto wave_of = [&](int sequences) { return scan_wave(all, sequences, scratch.size()); };
  sm80::for_each_tile_wave(all, wave_of, [&](sm80::TileChunkArgs& part, const sm80::TileWave&) {
    part.scratch = lay_out_scan(part, scratch);
    weigh_channels(part, args, stream);
    scan_tiles(part, stream);
  });
}

}  // namespace

void run(const GlaArgs& args, Stream& stream) {
  const bool prompts = args.seqs.num_seqs > 0 && args.seqs.max_len > 1;
  if (!prompts || !gla_scans(args)) return sm80::run(args, stream);
  sm80::TileChunkArgs tiles = sm80::tiles_of(args);
  if (args.decay == GlaDecay::kChannel) {
    tiles.channels = true;
    tiles.channel_scale = args.scale;
    scan_channels(tiles, args, stream);
    return sm80::gla_steps(args, stream);
  }
  scan_chunks(tiles, sm80::GlaGates{args.decay, args.g, args.i, args.g_stride}, args.scale, stream);
  sm80::gla_steps(args, stream);
}

}  // namespace recurve::cuda::sm90
