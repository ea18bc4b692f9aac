#pragma once
#include <vector_types.h>

#include <cstddef>
#include <span>

#include "kernels/backend.h"
#include "kernels/cuda/sm80/matrix/matrix_chunk.h"
#include "kernels/ops/deferred_rms_norm.h"

// The chunk form of recurrences whose state is a matrix (DK, DV) a head, by tiles of kTileRows rows
// whose products are made of queries, keys, values and states rounded to bf16, with sums and the
// state itself in fp32 (Beck et al. 2025 (TFLA), sec. 3; Dao and Gu 2024, sec. 6). Four passes:
//   products  queries and keys are rounded, and multiplied with each other       (tile_weights.cuh)
//   weights   what gates make of the rows of a tile                              (tile_weights.cuh)
//   states    the state before each tile, tile after tile                        (tile_states.cu)
//   outputs   from these, of all tiles at once                                   (tile_outputs.cu)
namespace recurve::cuda::sm80 {

constexpr int kTileRows = 64;

// What gates make of the rows of a tile, a head: with S before the tile,
//   o_t = e_t q_t S + sum_{j <= t} P_tj v_j      P_tj = weight_j (q_t . k_j) 2^(after_t - before_j)
//   S+  = F S + sum_j w_j k_j v_j^T
// The scale of the queries is in e and in `weight`. Exponents are differences of large numbers, so
// they come as sums of a coarse and a fine part. Rows that the tile lacks have zeros.
struct TileWeights {
  float e[kTileRows], w[kTileRows], weight[kTileRows];
  float after[kTileRows], after_fine[kTileRows];
  float before[kTileRows], before_fine[kTileRows];
  float floor[kTileRows];  // of the normalisers, where they are bounded
  float eqz[kTileRows];    // e_t q_t z before the tile, for the one pass of sm90/matrix/tile_scan.h
                           // alone
  float F;
  float unused[3];  // so that the size is a multiple of 16 bytes
};

// A tile's bf16 matrix of rows of `width` values, as it lies in scratch and in shared memory alike:
// pieces of 8 values are swizzled so that eight rows of one column of pieces lie in different
// banks. Returns where the piece begins, in values. width: 32, or a multiple of 64.
__host__ __device__ inline int piece_at(int row, int piece, int width) {
  const int turn = width >= 64 ? row % 8 : row / 2 % 4;
  return row * width + 8 * (piece ^ turn);
}

// The same where the matrix lies in parts of `part` columns, one behind the other.
__host__ __device__ inline int piece_in_parts(int row, int piece, int part) {
  return 8 * piece / part * kTileRows * part + piece_at(row, piece % (part / 8), part);
}

// The scratch memory of some tiles: number n is tile n % tiles of sequence n / tiles. States before
// tiles are there for a part of them at a time, as they are the most and the L2 cache fits only
// some: number p is tile part_first + p % part_tiles of sequence p / part_tiles.
struct TileScratch {
  uint16_t* q;           // (n, groups, kTileRows, DK), swizzled
  uint16_t* k;           // the same
  int part;              // columns of the parts that keys lie in
  float* products;       // (n, groups, kTileRows, kTileRows) q_t . k_j, where j <= t
  TileWeights* weights;  // (n, H)
  float* F;              // (n, H, DK) where each channel has a decay
  uint4* pairs;          // (n, H, 512) P in bf16, the same: see sm90/matrix/tile_scan.cuh
  uint16_t* S;           // (p, H, DV, DK) the state before the tile, swizzled
  float* z_added;   // (n, H, DK) sum_j w_j k_j; this and what follows where there is a normaliser
  float* z;         // (n, H, DK) the normaliser state before the tile
  double* changes;  // (n, H, 2) of the stabiliser m: m+ = max(first + m, second)
  float* m_after;   // (n, H) the stabiliser after the tile
};

struct TileChunkArgs {
  Ragged seqs;
  int H, DK, DV, chunk;
  int first_tile = 0, tiles = 0;       // which tiles of each sequence
  int part_first = 0, part_tiles = 0;  // which of these
  RowsOfHeads q, k, v;                 // q and k of the same groups
  StateData S;                         // (slots, H, DK, DV), or (slots, H, DV, DK) where keys_inner
  bool keys_inner;
  // Where each channel has a decay, for sm90/matrix/tile_scan.h alone; and the queries' scale.
  bool channels = false;
  float channel_scale = 1;
  float* z;  // (slots, H, DK) normaliser state, or null
  float* m;  // (slots, H) stabiliser, or null
  float eps = 0;
  bool bounded = false;                   // the normaliser is at least the floor, without its sign
  const float* skip = nullptr;            // (H): o_t gets skip v_t; or null
  RowsOfHeads gate = {nullptr, 0, 1, 0};  // o_t times silu(gate_t); or without data
  float* o;                               // (rows, H, DV)
  // What is left instead of o where the one pass of sm90/matrix/tile_scan.h takes the tiles, and
  // the norm (H, DV) of the layer that reads o; without x, o is left.
  const float* next_norm = nullptr;
  DeferredRmsNorm next = {};
  int segments =
      1;  // of the tiles of a sequence, for the one pass: see sm90/matrix/tile_segments.h
  TileScratch scratch = {};

  __host__ __device__ int groups() const { return H / q.heads; }
};

// Whether tiles can hold the heads: by their shape and how their rows lie alone, so that a model's
// rows are always computed alike.
bool tiles_take(const TileChunkArgs& args, Stream& stream);

// How many tiles of each of so many sequences are taken at once, and how many of these are a part.
struct TileWave {
  int tiles, part_tiles;
};
TileWave tile_wave(const TileChunkArgs& args, int sequences, size_t scratch_bytes);
// The scratch memory of args.tiles of each sequence, args.part_tiles of them at a time.
TileScratch lay_out_tiles(const TileChunkArgs& args, std::span<std::byte> memory);

// The last two passes, over a part of the tiles. States brings S, z and m to after the tiles.
void tile_states(const TileChunkArgs& args, Stream& stream);
void tile_outputs(const TileChunkArgs& args, Stream& stream);

}  // namespace recurve::cuda::sm80
