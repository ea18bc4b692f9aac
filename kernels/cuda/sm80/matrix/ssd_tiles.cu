// The chunk form by tiles.
#include "kernels/cuda/sm80/matrix/ssd_chunk.h"
#include "kernels/cuda/sm80/matrix/ssd_tiles.cuh"

namespace recurve::cuda::sm80 {

bool ssd_tiles(const SsdArgs& args, Stream& stream) {
  const TileChunkArgs tiles = tiles_of(args);
  if (!tiles_take(tiles, stream)) return false;
  tile_chunks(tiles, SsdGates{args}, 1, stream);
  return true;
}

}  // namespace recurve::cuda::sm80
