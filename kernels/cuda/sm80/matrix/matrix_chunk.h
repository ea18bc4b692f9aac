#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/ceil_div.h"
#include "kernels/check.h"
#include "kernels/cuda/sm80/matrix/chunks.cuh"
#include "kernels/ops/ragged.h"
#include "kernels/tensor.h"

// The chunk form of recurrences whose state is a matrix (DK, DV) a head, by blocks of kBlockRows
// rows (chunks.cuh). What depends on no state is computed for all blocks at once; then the blocks
// of a sequence follow one another.
namespace recurve::cuda::sm80 {

// What a block of rows needs in addition to its rows, a head: with S before the block,
//   o_t = e_t q_t S + sum_{j <= t} P_tj v_j      S+ = F S + sum_j w_j k_j v_j^T
// Rows that the block lacks have zeros.
struct BlockWeights {
  float P[kBlockRows][kBlockRows];
  float e[kBlockRows], w[kBlockRows];
  float floor[kBlockRows];  // of the normalisers, where they are bounded
  float F;                  // where a head has one decay
  float unused[3];
};

// An array of rows: (rows, groups, width), of which a head has the group head / heads.
struct RowsOfHeads {
  const float* data;
  int64_t stride;
  int heads;  // that share a group
  int width;
};

// Whether a head's rows begin at multiples of 16 bytes and consist of these.
inline bool whole_rows(const RowsOfHeads& rows) {
  return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.stride % 4 == 0 &&
         rows.width % 4 == 0;
}

struct MatrixChunkArgs {
  Ragged seqs;
  int H, DK, DV, chunk;
  // Which blocks of each sequence: [first_block, first_block + blocks). Block b of sequence s is
  // number s blocks + b - first_block in what follows.
  int first_block, blocks;
  const BlockWeights* weights;  // (sequences blocks, H)
  const float* F;               // (sequences blocks, H, DK) or null: of the weights
  RowsOfHeads q, k;             // by_block: rows are those of the blocks, kBlockRows each
  bool by_block;
  RowsOfHeads v;
  StateData S;        // (slots, H, DK, DV), or (slots, H, DV, DK) where keys_inner
  bool keys_inner;    //
  float* z;           // (slots, H, DK) normaliser state, or null
  float eps;          // of the normaliser
  bool bounded;       // it is at least the floor, without its sign
  const float* skip;  // (H): o_t gets skip v_t; or null
  RowsOfHeads gate = {nullptr, 0, 1, 0};  // of each head: o_t times silu(gate_t); or without data
  float* o;                               // (rows, H, DV)
};

// The most keys of a head that a GPU holds whose blocks of threads have so many bytes of shared
// memory. own_decays: there is F.
int most_keys_of_chunks(bool own_decays, size_t shared_memory);

// DK is one that the GPU holds.
void matrix_chunks(const MatrixChunkArgs& args, Stream& stream);

// Calls visit(sequences, first block, blocks) for the blocks of all sequences, in the order of each
// sequence's time, so many at once that block_bytes for each fit `bytes`. The state is stored, and
// may be rounded, after each visit: so all but the last end with a chunk. kRows: of a block.
template <int kRows = kBlockRows, typename Visit>
void for_each_wave(const Ragged& seqs, int chunk, size_t block_bytes, size_t bytes, Visit visit) {
  const int total = blocks_of_sequence<kRows>(seqs.max_len, chunk);
  const int most = static_cast<int>(bytes / block_bytes);
  CHECK(most >= blocks_of_chunk<kRows>(chunk));
  const int fitting = std::clamp(most / total, 1, seqs.num_seqs);
  const int parts = ceil_div(seqs.num_seqs, fitting);
  const int together = ceil_div(seqs.num_seqs, parts);  // about as many in each
  const int of_chunk = blocks_of_chunk<kRows>(chunk), each = most / together;
  const int wave = total <= each ? total : each / of_chunk * of_chunk;
  for (int first = 0; first < seqs.num_seqs; first += together) {
    Ragged part = seqs;
    part.num_seqs = std::min(together, seqs.num_seqs - first);
    part.begin += first;
    part.slot += first;
    for (int block = 0; block < total; block += wave) {
      visit(part, block, std::min(wave, total - block));
    }
  }
}

}  // namespace recurve::cuda::sm80
