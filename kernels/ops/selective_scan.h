#pragma once
#include "kernels/ops/op.h"
#include "kernels/ops/ragged.h"
#include "kernels/tensor.h"

namespace recurve {

// The selective state space of Mamba, after Gu and Dao 2023, alg. 2 with the simplified (Euler)
// discretisation of B, of D channels with N states each. A row brings R + 2 N parameters, low, B
// and C, that its channels share. For the row t and the channel d:
//   dt      = softplus(dt_proj[d] . low + dt_bias[d]),  softplus(a) = a > 20 ? a : log(1 + exp(a))
//   h'[d,n] = exp(dt A[d,n]) h[d,n] + dt B[n] x[d]
//   y[d]    = (sum_n C[n] h'[d,n] + skip[d] x[d]) silu(z[d])
// With norm_eps each of low, B and C is v * rsqrt(mean(v^2) + norm_eps) before, as in Falcon Mamba
// (Zuo et al. 2024), sec. 2.
//
// The rows of a sequence are cut into chunks of `chunk` from its first row on; inside a chunk an
// implementation may add in any order. So a prompt gives the same bits however it is split between
// calls, as long as every call but the last brings a multiple of `chunk` rows. (The reference goes
// row by row, and gives the same bits for any split of a state in F32.)
struct SelectiveScanArgs {
  Ragged seqs;
  int D;                 // channels
  int N;                 // states of a channel
  int R;                 // rank of the time steps
  int chunk;             // rows; at least 1
  float norm_eps;        // of low, B and C; 0: they are as they come
  int x_stride;          // floats from a row of x to the next; the others too
  int params_stride;     //
  int z_stride;          //
  const float* x;        // (rows, D)
  const float* params;   // (rows, R + 2 N): low, B, C
  const float* z;        // (rows, D) gate, or null: no gate
  Matrix dt_proj;        // (D, R)
  const float* dt_bias;  // (D)
  const float* A;        // (D, N), negative: -exp(A_log)
  const float* skip;     // (D), "D" in the checkpoints
  StateData h;           // (slots, D, N) state, read and written in place
  float* scratch;        // (rows, D + R + 2 N), for the op's own use
  float* y;              // (rows, D), dense; does not overlap the inputs
  // (rows, D) instead of y, or null; where this backend's linear op takes bf16
  uint16_t* y_bf16 = nullptr;

  int num_params() const { return R + 2 * N; }  // of a row
};

struct SelectiveScanKernel {
  static constexpr const char* kName = "selective_scan";
  Op<SelectiveScanArgs> selective_scan;
  static constexpr auto kOp = &SelectiveScanKernel::selective_scan;
};

}  // namespace recurve
