#pragma once
#include <cstddef>

#include "kernels/backend.h"
#include "kernels/cuda/sm80/matrix/chunks.cuh"
#include "kernels/cuda/sm80/matrix/matrix_chunk.h"
#include "kernels/ops/delta_rule.h"

// The chunk form of states that replace what is under a key, by blocks of kDeltaRows rows
// (chunks.cuh). What does not know the state is made for all blocks at once; then the blocks of a
// sequence follow one another. All products are exact to 2^-23.
namespace recurve::cuda::sm80 {

constexpr int kDeltaRows = 32;

// What a block of rows needs in addition to its rows, a head. With S before the block, and its rows
// in two halves,
//   X_t = v_t - e_t k_t S     U = M X of the first half
//   X_t -= (M U)_t of the other half, and U = M X of it
//   o_t = read_t q_t S + sum_{j <= t} P_tj u_j     S+ = F S + K^T (w U)
// where M, of the rows of a half, is (1 + A)^-1 beta, and between the halves A without beta: the
// inverse of a larger triangle would be further from what substitution finds. Rows that the block
// lacks have zeros.
constexpr int kDeltaHalf = kDeltaRows / 2;
struct DeltaBlock {
  static constexpr int kPitch =
      kDeltaRows + 4;  // no two lanes that read fours of rows share a bank
  float M[kDeltaRows][kPitch];
  float P[kDeltaRows][kDeltaRows];  // by columns: P[j][t]
  float e[kDeltaRows], read[kDeltaRows], w[kDeltaRows];
  float F;
  float unused[3];
};

struct DeltaChunkArgs {
  Ragged seqs;
  int H, DK, DV, chunk;
  // Which blocks of each sequence, as in MatrixChunkArgs.
  int first_block, blocks;
  const DeltaBlock* weights;  // (sequences blocks, H)
  RowsOfHeads q, k, v;
  StateData S;  // (slots, H, DK, DV)
  float* o;     // (rows, H, DV)
};

// Whether chunks of two rows or more take the chunk form, on a GPU whose blocks of threads have so
// many bytes of shared memory. Depends on the op's sizes alone, so it is one form for all batches.
bool takes_delta_chunks(const DeltaRuleArgs& args, size_t shared_memory);

// The chunks of two rows or more.
void delta_rule_chunks(const DeltaRuleArgs& args, Stream& stream);

// Finds the weights of the blocks of rows [first_block, first_block + blocks) of each sequence.
void weigh_delta_blocks(const DeltaRuleArgs& args, int first_block, int blocks, DeltaBlock* weights,
                        Stream& stream);

}  // namespace recurve::cuda::sm80
