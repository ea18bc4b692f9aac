#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/ops/delta_rule.h"

// The chunk form of the delta rule by tiles of kDeltaRows rows, whose products are made of queries,
// keys, values and states rounded to bf16, with sums and the state itself in fp32. Two passes:
//   weights  what does not know the state, of all tiles at once      (delta_weights.cu)
//   scan     the state and the outputs, tile after tile              (delta_scan.cu)
namespace recurve::cuda::sm90 {

constexpr int kDeltaRows = 64;

// What a tile needs besides its queries, keys and values, a head. With S before the tile,
//   X_t = v_t - e_t k_t S     U = M X     o_t = read_t q_t S + sum_{j <= t} P_tj u_j
//   S+  = F S + K^T (w U)
// where M = (1 + A)^-1 beta. M and P are in bf16, in rows of 128 bytes that are swizzled as
// products read them. Rows that the tile lacks have zeros in M and P.
struct DeltaTile {
  uint16_t M[kDeltaRows * kDeltaRows], P[kDeltaRows * kDeltaRows];
  float e[kDeltaRows], read[kDeltaRows], w[kDeltaRows];
  float F;
  float unused[3];  // so that the size is a multiple of 16 bytes
};

struct DeltaTileArgs {
  DeltaRuleArgs rule;
  // Which tiles of each sequence. Tile t of sequence s is number s tiles + t - first_tile below.
  int first_tile, tiles;
  uint16_t* keys;      // (number, HK, 2, kDeltaRows, DK) keys, then queries, as products read them
  DeltaTile* weights;  // (number, H)
};

void weigh_delta_tiles(const DeltaTileArgs& args, Stream& stream);
void scan_delta_tiles(const DeltaTileArgs& args, Stream& stream);

}  // namespace recurve::cuda::sm90
