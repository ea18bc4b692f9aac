#pragma once
#include "kernels/ops/ragged.h"
#include "kernels/tensor.h"

namespace recurve {

// The selective state space of Mamba, after Gu and Dao 2023, alg. 2 with the simplified (Euler)
// discretisation of B, of D channels with N states each. For the row t and the channel d:
//   dt      = softplus(dt~[d] + dt_bias[d]),  softplus(a) = a > 20 ? a : log(1 + exp(a))
//   h'[d,n] = exp(dt A[d,n]) h[d,n] + dt B[n] x[d]
//   y[d]    = (sum_n C[n] h'[d,n] + skip[d] x[d]) silu(z[d])
// B and C belong to the row and are shared by its channels.
//
// The rows of a sequence are cut into chunks of `chunk` from its first row on; inside a chunk an
// implementation may add in any order. So a prompt gives the same bits however it is split between
// calls, as long as every call but the last brings a multiple of `chunk` rows. (The reference goes
// row by row, and gives the same bits for any split of a state in F32.)
struct SelectiveScanArgs {
  Ragged seqs;
  int D;                 // channels
  int N;                 // states of a channel
  int chunk;             // rows; at least 1
  int x_stride;          // floats from a row of x to the next; likewise the others
  int dt_stride;         //
  int BC_stride;         //
  int z_stride;          //
  const float* x;        // (rows, D)
  const float* dt;       // (rows, D) step size before bias and softplus
  const float* B;        // (rows, N)
  const float* C;        // (rows, N)
  const float* z;        // (rows, D) gate, or null: no gate
  const float* dt_bias;  // (D)
  const float* A;        // (D, N), negative: -exp(A_log)
  const float* skip;     // (D), "D" in the checkpoints
  StateData h;           // (slots, D, N) state, read and written in place
  float* y;              // (rows, D), dense; does not overlap the inputs
};

}  // namespace recurve
