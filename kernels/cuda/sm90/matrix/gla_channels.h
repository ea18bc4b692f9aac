#pragma once
#include "kernels/cuda/sm80/matrix/tile_chunk.h"
#include "kernels/ops/gla.h"

namespace recurve::cuda::sm90 {

// What scan_tiles() needs of a recurrence whose key channels have one decay each, in the
// scratch memory of lay_out_scan(): queries and keys times their decays within the tile, P, and the
// decays of whole tiles. args.channels is set.
void weigh_channels(const sm80::TileChunkArgs& args, const GlaArgs& gla, Stream& stream);

}  // namespace recurve::cuda::sm90
