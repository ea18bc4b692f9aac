#pragma once
#include "kernels/ops/op.h"
#include "kernels/ops/ragged.h"
#include "kernels/tensor.h"

namespace recurve {

// How a state matrix fades from one row to the next.
enum class GlaDecay {
  kNone,     // not at all: linear attention
  kHead,     // a constant of the head: RetNet
  kToken,    // one value a head and row: simple GLA, mLSTM with sigmoid gates
  kChannel,  // one value a key channel and row: GLA, HGRN2
};

// The recurrence that decays its state and adds an outer product. With decay exp(g), g <= 0, and
// qs = scale q, the step form for a row of a head is
//   S'[a,d] = exp(g[a]) S[a,d] + exp(i) k[a] v[d]
//   z'[a]   = exp(g[a]) z[a] + exp(i) k[a]              only where there is a normaliser
//   o[d]    = sum_a qs[a] S'[a,d] / (N + eps)      with N = sum_a qs[a] z'[a], or max(|N|, 1) where
//                                                  it is bounded; or without the division
// and the chunk form over L rows, with G_tj[a] = g_{j+1}[a] + ... + g_t[a] (G_tt = 0) and
// G_t = g_1 + ... + g_t,
//   P_tj = sum_a qs_t[a] k_j[a] exp(G_tj[a] + i_j)
//   o_t  = sum_a qs_t[a] exp(G_t[a]) S[a] + sum_{j <= t} P_tj v_j, the normaliser with v = 1
//   S+   = exp(G_L) S + sum_j exp(G_Lj + i_j) k_j v_j^T, z+ the same with v = 1
// No exponent is ever positive. An implementation that takes them apart, exp(G_t - R) exp(R - G_j),
// does so around a point R between j and t, such as the start of a block of 16 rows: exp(-G_j)
// alone overflows when channels fade fast.
//
// The rows of a sequence are cut into chunks of `chunk` from its first row on; a chunk of one row
// takes the step form. So a prompt gives the same bits however it is split between calls, as long
// as every call but the last brings a multiple of `chunk` rows.
//
// Source: Yang et al. 2023 (GLA), eq. 3 to 17, with one decay along the keys; Sun et al. 2023
// (RetNet), eq. 5 to 7; Beck et al. 2025 (TFLA), eq. 22 to 24 (mLSTMsig) and app. D.2 (bounded
// normaliser); Katharopoulos et al. 2020, eq. 16 to 20 (normaliser).
struct GlaArgs {
  Ragged seqs;
  int H;      // heads
  int DK;     // query and key size of a head
  int DV;     // value size of a head
  int chunk;  // rows; at least 1. 1: the step form throughout
  GlaDecay decay;
  float scale;     // of the query
  float eps;       // added to the normaliser
  bool bounded;    // the normaliser, where there is one
  int q_stride;    // floats from a row of q to the next
  int k_stride;    // of k
  int v_stride;    // of v
  int g_stride;    // of g and i
  const float* q;  // (rows, H, DK)
  const float* k;  // (rows, H, DK)
  const float* v;  // (rows, H, DV)
  const float* g;  // log of the decay, <= 0. kNone: null; kHead: (H); kToken: (rows, H);
                   // kChannel: (rows, H, DK)
  const float* i;  // (rows, H) log of the weight of a row, <= 0; or null: zeros
  StateData S;     // (slots, H, DK, DV) state, read and written in place
  float* z;        // (slots, H, DK) normaliser state; or null: no normaliser
  float* o;        // (rows, H, DV), dense; does not overlap the inputs
};

struct GlaOp : Op<GlaArgs> {
  // Whether, of heads of 64 keys or more without a normaliser, decays of channels are no reason not
  // to: see Op::rounds_in_tiles. Products of keys and queries that close rows make are exact then.
  bool rounds_channels_in_tiles = false;
};

struct GlaKernel {
  static constexpr const char* kName = "gla";
  GlaOp gla;
  static constexpr auto kOp = &GlaKernel::gla;
};

}  // namespace recurve
