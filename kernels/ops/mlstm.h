#pragma once
#include "kernels/ops/head_norm_gate.h"
#include "kernels/ops/op.h"
#include "kernels/ops/ragged.h"
#include "kernels/tensor.h"

namespace recurve {

// The mLSTM cell with exponential input gate, after Beck et al. 2025 (TFLA), eq. 1 to 8 (step) and
// 36 to 56 (chunkwise), with the state started at C = 0, n = 0, m = 0.
//
// Gates, one scalar a head: i = cap tanh(i~ / cap), f the same (cap 0: as they are), lf =
// logsigmoid(f). Step, for the token t of a head, with qs = q / sqrt(DK):
//   m' = max(lf + m, i)          F = exp(lf + m - m')     I = exp(i - m')
//   C' = F C + I k v^T           n' = F n + I k
//   h  = qs^T C' / (max(|qs . n'|, exp(-m')) + eps)
// Chunk form over L tokens, with b_t = sum of lf up to and including t, g = b_L:
//   D_tj = b_t - b_j + i_j (j <= t)      m_t = max(b_t + m, max_j D_tj)
//   S_tj = (qs_t . k_j) exp(D_tj - m_t)  e_t = exp(b_t + m - m_t)
//   h_t  = (e_t qs_t^T C + sum_j S_tj v_j) / (max(|e_t qs_t . n + sum_j S_tj|, exp(-m_t)) + eps)
//   a_j  = g - b_j + i_j      m+ = max(g + m, max_j a_j)
//   C+   = exp(g + m - m+) C + sum_j exp(a_j - m+) k_j v_j^T, n+ the same with k_j
//
// The rows of a sequence are cut into chunks of `chunk` from its first row on; a chunk of one row
// takes the step form. So a prompt gives the same bits however it is split between calls, as long
// as every call but the last brings a multiple of `chunk` rows.
struct MlstmArgs {
  Ragged seqs;
  int H;                // heads
  int DK;               // query and key size of a head
  int DV;               // value size of a head
  int chunk;            // rows; at least 1. 1: the step form throughout
  float gate_soft_cap;  // 0: none
  float eps;            // added to the denominator
  int stride;           // floats from a row of q, k, v, i, f to the next
  const float* q;       // (rows, H, DK)
  const float* k;       // (rows, H, DK), not scaled
  const float* v;       // (rows, H, DV)
  const float* i;       // (rows, H) input gate pre-activation, bias included
  const float* f;       // (rows, H) forget gate pre-activation, bias included
  StateData C;          // (slots, H, DK, DV) state, read and written in place
  float* n;             // (slots, H, DK) normaliser state
  float* m;             // (slots, H) stabiliser state
  float* h;             // (rows, H, DV), dense

  // Where head_norm is given, h is sigmoid(o) * LayerNorm_head(h) * head_norm: as head_norm_gate.h
  // makes it of the cell's own h.
  const float* o = nullptr;          // (rows, H, DV), with `stride` as well
  const float* head_norm = nullptr;  // (H, DV) or null
  float head_norm_eps = 0;
  // (rows, H, DV) or null: the result, instead of h, which is then written over all the same. Only
  // where this backend's linear op takes bf16.
  uint16_t* h_bf16 = nullptr;
};

// What is left to do with the cell's own h, in place. Only where args.head_norm is given.
inline HeadNormGateArgs head_norm_gate_of(const MlstmArgs& args) {
  return {.rows = args.seqs.rows,
          .H = args.H,
          .DV = args.DV,
          .eps = args.head_norm_eps,
          .o_stride = args.stride,
          .h = args.h,
          .o = args.o,
          .w = args.head_norm,
          .y = args.h,
          .y_bf16 = args.h_bf16};
}

struct MlstmKernel {
  static constexpr const char* kName = "mlstm";
  Op<MlstmArgs> mlstm;
  static constexpr auto kOp = &MlstmKernel::mlstm;
};

}  // namespace recurve
