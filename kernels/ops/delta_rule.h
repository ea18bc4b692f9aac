#pragma once
#include "kernels/ops/op.h"
#include "kernels/ops/ragged.h"
#include "kernels/tensor.h"

namespace recurve {

// How a state matrix fades from one row to the next.
enum class DeltaDecay {
  kNone,     // not at all: DeltaNet
  kToken,    // one value a head and row: Gated DeltaNet, Qwen3-Next, Olmo-Hybrid
  kChannel,  // one value a key channel and row: Kimi Delta Attention
};

// The delta rule: what the state holds under a key is replaced by beta of the way to the value.
// With decay exp(g), g <= 0, and qs = scale q, the step form for a row of a head is
//   S[a,d]  <- exp(g[a]) S[a,d]
//   u[d]     = beta (v[d] - sum_a k[a] S[a,d])       of the state after its decay
//   S'[a,d]  = S[a,d] + k[a] u[d]
//   o[d]     = sum_a qs[a] S'[a,d]
// and the chunk form over L rows, with G_tj[a] = g_{j+1}[a] + ... + g_t[a] (G_tt = 0) and
// G_t = g_1 + ... + g_t,
//   A_tj = beta_t sum_a k_t[a] k_j[a] exp(G_tj[a])   for j < t, else 0
//   P_tj = sum_a qs_t[a] k_j[a] exp(G_tj[a])         for j <= t, else 0
//   (1 + A) U = beta (V - (K exp(G)) S)
//   O  = (QS exp(G)) S + P U
//   S+ = exp(G_L) S + sum_j exp(G_Lj) k_j u_j^T
// The triangle 1 + A is solved by forward substitution, in blocks where that is wanted, and never
// by products of its powers, see rwkv7.h: with keys of length 1 and beta in [0, 2] what is solved
// for stays small while those grow without bound. T = (1 + A)^-1 does not know S, so it and T beta
// V can be made for all chunks at once before anything goes from chunk to chunk.
//
// No exponent is ever positive. With decays of channels an implementation that takes them apart
// does so as in gla.h, around the start of a block of 16 rows: unlike RWKV-7's they have no bound.
//
// With fewer heads of queries and keys than of values, HK < H, value heads h H / HK to (h + 1) H /
// HK - 1 share those of key head h; decays and beta are of the value head.
//
// The rows of a sequence are cut into chunks of `chunk` from its first row on, as in gla.h: a chunk
// of one row takes the step form, and an implementation may take it throughout. One that rounds to
// bf16 (Op::rounds_in_tiles) does so where `chunk` is a multiple of 64 and beta is bounded; else it
// does not. Of the largest output, outputs of such tiles are off by up to 1 % with random keys,
// by 5 % with keys that are all but parallel, beta near 1 and no decay. Near 2, (1 + A)^-1 has 64
// values of size 2 in a row there, whose roundings all meet the same value: 21 %.
// Source: Yang et al. 2024 (DeltaNet), eq. 4 and sec. 3.2; Yang et al. 2025 (Gated DeltaNet), eq.
// 10 and sec. 3.3; Kimi Team 2025 (Kimi Linear), eq. 1 to 9, for decays of channels.
struct DeltaRuleArgs {
  Ragged seqs;
  int H;      // heads of values
  int HK;     // heads of queries and keys; H is a multiple of it
  int DK;     // query and key size of a head
  int DV;     // value size of a head
  int chunk;  // rows; at least 1. 1: the step form throughout
  DeltaDecay decay;
  float scale;        // of the query
  int q_stride;       // floats from a row of q to the next
  int k_stride;       // of k
  int v_stride;       // of v
  int g_stride;       // of g
  int beta_stride;    // of beta
  const float* q;     // (rows, HK, DK)
  const float* k;     // (rows, HK, DK), of length 1 at most
  const float* v;     // (rows, H, DV)
  const float* g;     // log of the decay, <= 0. kNone: null; kToken: (rows, H); kChannel: (rows, H,
                      // DK)
  const float* beta;  // (rows, H) in [0, 2], in [0, 1] where bounded_beta
  StateData S;        // (slots, H, DK, DV) keys by values, read and written in place
  float* o;           // (rows, H, DV), dense; does not overlap the inputs
  bool bounded_beta = false;  // no beta is above 1, of any row of the model
};

struct DeltaRuleKernel {
  static constexpr const char* kName = "delta_rule";
  Op<DeltaRuleArgs> delta_rule;
  static constexpr auto kOp = &DeltaRuleKernel::delta_rule;
};

}  // namespace recurve
