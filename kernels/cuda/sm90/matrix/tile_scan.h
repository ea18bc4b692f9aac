#pragma once
#include <cstddef>
#include <span>

#include "kernels/cuda/sm80/matrix/tile_chunk.h"

// The chunk form by tiles of sm80/matrix/tile_chunk.h in one pass: a block stays with some columns
// of a head and goes through the tiles of a sequence. What a tile needs is copied ahead of it, a
// warpgroup brings the state from tile to tile in its registers, and two others make the outputs of
// every second tile each; states never leave the multiprocessor. Queries are multiplied with keys
// in each block anew: that costs less than it does to bring the products there.
namespace recurve::cuda::sm90 {

// What sm80::tile_wave() and sm80::lay_out_tiles() say, for what this form leaves in scratch
// memory: queries, keys, weights and, where there is one, the normaliser.
sm80::TileWave scan_wave(const sm80::TileChunkArgs& args, int sequences, size_t scratch_bytes);
sm80::TileScratch lay_out_scan(const sm80::TileChunkArgs& args, std::span<std::byte> memory);

// Queries and keys in bf16, as scan_tiles() reads them. Then, with the weights there, the outputs,
// and the state after the tiles.
void round_for_scan(const sm80::TileChunkArgs& args, Stream& stream);
// The normaliser's part of the weights, and z and m behind the tiles.
void find_normalisers(const sm80::TileChunkArgs& args, Stream& stream);
void scan_tiles(const sm80::TileChunkArgs& args, Stream& stream);

}  // namespace recurve::cuda::sm90
