#pragma once
#include "kernels/ops/deferred_rms_norm.h"
#include "kernels/ops/held_rows.h"
#include "kernels/ops/op.h"
#include "kernels/ops/ragged.h"
#include "kernels/tensor.h"

namespace recurve {

// The state space duality of Mamba-2, after Dao and Gu 2024, sec. 6 and 7: heads of P channels with
// N states each, one decay a head; the heads of a group share B and C, head j being of the group
// j / (H / G). With, for the row t and a head,
//   dt_t = clamp(softplus(dt~_t + dt_bias), dt_min, dt_max),  softplus(a) = a > 20 ? a :
//          log(1 + exp(a)),  a_t = dt_t A
// the step form is
//   h'[p,n] = exp(a_t) h[p,n] + dt_t x_t[p] B_t[n]
//   y_t[p]  = sum_n C_t[n] h'[p,n] + skip x_t[p]
// and the chunk form over L rows, with S_tj = a_{j+1} + ... + a_t (never positive; S_tt = 0) and
// s_t = a_1 + ... + a_t,
//   y_t[p] = exp(s_t) sum_n C_t[n] h[p,n] + sum_{j <= t} (C_t . B_j) exp(S_tj) dt_j x_j[p]
//            + skip x_t[p]
//   h+     = exp(s_L) h + sum_j exp(S_Lj) dt_j x_j B_j^T
//
// The rows of a sequence are cut into chunks of `chunk` from its first row on; a chunk of one row
// takes the step form. So a prompt gives the same bits however it is split between calls, as long
// as every call but the last brings a multiple of `chunk` rows.
//
// Where the state is written once in several rows (held_rows.h), h is the base, and next to it lie
// u_j = dt_j x_j, B_j and a_j of the rows since; rows are numbered from the first of these. A step
// computes y_t as the chunk form does, with (C_t . B_j) exp(S_tj) u_j[p] of each row, and every
// so often h as
//   h+ = exp(s_t) h + sum_{j <= t} exp(S_tj) u_j B_j^T
//
// With z, y_t[p] is silu(z_t[p]) times that: the gate before Mamba-2's norm.
struct SsdArgs {
  Ragged seqs;
  int H;      // heads
  int P;      // channels of a head
  int N;      // states of a channel
  int G;      // groups of heads that share B and C; divides H
  int chunk;  // rows; at least 1. 1: the step form throughout
  float dt_min;
  float dt_max;          // may be infinite
  int xBC_stride;        // floats from a row of x, B, C to the next
  int dt_stride;         // floats from a row of dt to the next
  int z_stride;          // floats from a row of z to the next
  const float* x;        // (rows, H, P)
  const float* B;        // (rows, G, N)
  const float* C;        // (rows, G, N)
  const float* dt;       // (rows, H) step size before bias and softplus
  const float* z;        // (rows, H, P) gate, or null: no gate
  const float* dt_bias;  // (H)
  const float* A;        // (H), negative: -exp(A_log)
  const float* skip;     // (H), "D" in the checkpoints
  StateData h;           // (slots, H, P, N) state, read and written in place
  float* y;              // (rows, H, P), dense; does not overlap the inputs
  // Of a state that is written once in several rows. Rows behind those that there are may hold
  // anything.
  HeldRows held = {};
  float* held_u = nullptr;  // (slots, every - 1, H, P)
  float* held_B = nullptr;  // (slots, every - 1, G, N)
  float* held_a = nullptr;  // (slots, H, every - 1)
  // Instead of y where SsdOp::defers_norm says so: the norm (H, P) of the layer that reads y, and
  // what is left for that.
  const float* next_norm = nullptr;
  DeferredRmsNorm next = {};
};

struct SsdOp : Op<SsdArgs> {
  // Whether it takes SsdArgs::next of these arguments, whatever that and y are. null: never.
  bool (*defers)(const SsdArgs& args) = nullptr;
  bool defers_norm(const SsdArgs& args) const { return defers != nullptr && defers(args); }
};

struct SsdKernel {
  static constexpr const char* kName = "ssd";
  SsdOp ssd;
  static constexpr auto kOp = &SsdKernel::ssd;
};

}  // namespace recurve
