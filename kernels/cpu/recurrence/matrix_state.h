#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/recurrence/open_state.h"

// What the mLSTM and the GLA family share: each head keeps a matrix S (DK, DV) that fades and takes
// in outer products of keys and values. A few rows of a head are computed in two stages. The first
// makes all that the columns of S share: gates, scores, denominators, and the states that are
// vectors. It is the op's own. The second makes columns of o and of the new S, each from itself
// alone, so they can be split over threads in any way. It is here.
namespace recurve::cpu {

// A few rows of one head of one sequence, as the first stage leaves them. For L == 1, the step:
//   S' = F S + k v^T             o   = q S' / den
// and else, a row t seeing its own and earlier rows:
//   S' = F S + sum_j g_j k_j v_j^T   o_t = (e_t q_t S + sum_{j <= t} P_tj v_j) / den_t
struct MatrixRows {
  int L;
  int DK;
  int DV;
  int P_stride;              // floats from a row of P to the next
  const float* q;            // (L, DK)
  const float* k;            // (L, DK)
  const float* F;            // (DK) what stays of each row of S
  const float* P;            // (L, P_stride), valid for j <= t; the step has none
  const float* den;          // (L) or null: ones
  const float* e = nullptr;  // (L) or null: ones; the step has none
  const float* g = nullptr;  // (L) or null: ones; the step has none
  int64_t v_stride;          // floats from a row of v to the next
  int64_t o_stride;          // floats from a row of o to the next
  const float* v;            // (L, DV)
  StateData S;               // (DK, DV), in BF16 for the step form alone
  float* o;                  // (L, DV)
};

// The second stage, for `count` columns from `begin` on.
void advance_columns(const MatrixRows& rows, int begin, int count);

// Floats of a thread for it, of so many rows at most.
size_t advance_floats(int64_t DK, int64_t L);

// What for_heads() has with these arguments.
ScratchBytes scratch_of_heads(int DK, int DV, int64_t L, const StateData& state, size_t floats);

// Columns that threads take as a whole: a multiple of every vector, so that a column is computed
// the same way however many threads there are.
inline constexpr int kColumns = 64;

// Calls make(seq, head, first, memory), the first stage, for each sequence and head and from its
// first row to its last: it says by its L how many rows it took from `first` on, none beyond the
// end of a chunk, and leaves S to this function. The second stage follows each call. `memory` has
// `floats` floats.
// state: (slots, H, DK, DV), of which S is the head's part.
template <typename Make>
void for_heads(ThreadPool& pool, const Ragged& seqs, int H, int DK, int DV, int chunk,
               const StateData& state, size_t floats, const Make& make) {
  const int64_t pairs = int64_t{seqs.num_seqs} * H;
  if (pairs == 0) return;
  const auto run = [&](int64_t pair, const auto& second) {
    const int64_t seq = pair / H;
    const int rows = seqs.begin[seq + 1] - seqs.begin[seq];
    const int64_t matrix = int64_t{DK} * DV, at = int64_t{seqs.slot[seq]} * H + pair % H;
    float* memory = scratch(floats + OpenState::copy_floats(state, matrix));
    OpenState S(state, StatePart::whole(at * matrix, matrix), rows == 1, memory + floats);
    for (int first = 0; first < rows;) {
      MatrixRows piece = make(seq, pair % H, first, memory);
      piece.S = S.data();
      second(piece);
      first += piece.L;
      if (first % chunk == 0 || first == rows) S.end_chunk();
    }
  };
  if (pairs < pool.threads()) {  // pair after pair, the columns over the threads
    const int64_t strips = ceil_div(DV, kColumns);
    for (int64_t pair = 0; pair < pairs; ++pair) {
      run(pair, [&](const MatrixRows& piece) {
        const int64_t cost = 2 * int64_t{piece.L} * DK * kColumns;
        for_blocks(pool, strips, cost, [&](int64_t begin, int64_t end) {
          const int column = static_cast<int>(begin) * kColumns;
          advance_columns(piece, column, std::min(static_cast<int>(end) * kColumns, DV) - column);
        });
      });
    }
    return;
  }
  const int64_t rows = ceil_div(seqs.rows, seqs.num_seqs);
  for_blocks(pool, pairs, 2 * rows * DK * DV, [&](int64_t begin, int64_t end) {
    for (int64_t pair = begin; pair < end; ++pair) {
      run(pair, [&](const MatrixRows& piece) { advance_columns(piece, 0, DV); });
    }
  });
}

}  // namespace recurve::cpu
