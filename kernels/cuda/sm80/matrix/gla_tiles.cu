// The chunk form by tiles, where a head has one decay a row.
#include "kernels/cuda/sm80/matrix/gla_chunk.h"
#include "kernels/cuda/sm80/matrix/gla_tiles.cuh"

namespace recurve::cuda::sm80 {

bool gla_tiles(const GlaArgs& args, Stream& stream) {
  const TileChunkArgs tiles = tiles_of(args);
  if (args.decay == GlaDecay::kChannel || !tiles_take(tiles, stream)) return false;
  tile_chunks(tiles, GlaGates{args.decay, args.g, args.i, args.g_stride}, args.scale, stream);
  return true;
}

}  // namespace recurve::cuda::sm80
