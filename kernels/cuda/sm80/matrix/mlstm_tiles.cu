// The chunk form by tiles, of heads that fill them.
#include "kernels/cuda/sm80/matrix/mlstm.h"
#include "kernels/cuda/sm80/matrix/mlstm_tiles.cuh"

namespace recurve::cuda::sm80 {

bool mlstm_tiles(const MlstmArgs& args, Stream& stream) {
  const TileChunkArgs tiles = tiles_of(args);
  if (!tiles_take(tiles, stream)) return false;
  tile_chunks(tiles, MlstmGates{args.i, args.f, args.stride, args.gate_soft_cap},
              mlstm_query_scale(args), stream);
  return true;
}

}  // namespace recurve::cuda::sm80
