#pragma once
#include <optional>

#include "kernels/ops/head_norm_bonus.h"
#include "kernels/ops/op.h"
#include "kernels/ops/ragged.h"
#include "kernels/ops/rwkv7_gate.h"
#include "kernels/tensor.h"

namespace recurve {

// RWKV-7's recurrence: a state that fades by channel, of which a part along one key is taken out
// before a key and value are put in. With a = -kk, b = kk alpha and the decay exp(lw), the step
// form for a row of a head is
//   u[d]    = sum_c a[c] S[c,d]                                       S as it was before the row
//   S'[c,d] = exp(lw[c]) S[c,d] + b[c] u[d] + k[c] v[d]
//   o[d]    = sum_c r[c] S'[c,d]
// and the chunk form over L rows, with G_t = lw_1 + ... + lw_t and E_t = G_t - lw_t,
//   Aab_tj = sum_c a_t b_j exp(E_t - G_j)   Aak_tj the same with k_j    for j < t, else 0
//   Arb_tj = sum_c r_t b_j exp(G_t - G_j)   Ark_tj the same with k_j    for j <= t, else 0
//   (1 - Aab) U = (a exp(E)) S + Aak V
//   O  = (r exp(G)) S + Ark V + Arb U
//   S+ = exp(G_L) S + sum_j exp(G_L - G_j) (b_j u_j^T + k_j v_j^T)
// The triangle 1 - Aab is solved by forward substitution, in blocks where that is wanted, and never
// by products of its powers: those of a chunk of keys that are nearly parallel grow to 1e17 before
// they cancel, while U itself stays small, as kk has length 1 and alpha is at most 1.
//
// Since -0.60653066 < lw < 0, exponents may be taken apart around the middle row m of a chunk:
// x exp(E - G_m) and y exp(G_m - G) reach exp((L / 2 + 1) 0.6066), 5e8 for L = 64, which fp32 and
// bf16 hold and fp16 does not beyond L = 32. So the four products are one, of (2 L, N) stacked from
// a and r, with (2 L, N) stacked from b and k, of which each quarter has its mask.
//
// The rows of a sequence are cut into chunks of `chunk` from its first row on, as in gla.h: a chunk
// of one row takes the step form, and an implementation may take it throughout.
// Source: Peng et al. 2025 (RWKV-7), eq. 15 to 18; Yang et al. 2024 (DeltaNet), sec. 3.2, for the
// chunk form.
struct Rwkv7Args {
  Ragged seqs;
  int H;               // heads
  int N;               // channels of a head, of keys and of values; D = H N
  int chunk;           // rows; at least 1. 1: the step form throughout
  int stride;          // floats from a row of each of the following six to the next
  const float* r;      // (rows, H, N)
  const float* lw;     // (rows, H, N) log of the decay, in (-0.60653066, 0)
  const float* k;      // (rows, H, N)
  const float* v;      // (rows, H, N)
  const float* kk;     // (rows, H, N) of length 1 or 0
  const float* alpha;  // (rows, H, N) in [0, 1]
  StateData S;         // (slots, H, N, N) keys by values, read and written in place
  float* o;            // (rows, H, N), dense; does not overlap the inputs
  // Where Rwkv7Op::takes_cell says so, both or neither: the gate before the recurrence, which has
  // its outputs in lw, k, v, kk and alpha, and the norm behind it, which has its input in o. Both
  // are done too; these five and o may be left as they were.
  std::optional<Rwkv7GateArgs> gate = std::nullopt;
  std::optional<HeadNormBonusArgs> out = std::nullopt;
};

struct Rwkv7Op : Op<Rwkv7Args> {
  // Whether Rwkv7Args::gate and out may be added to these arguments. null: never.
  bool (*cells)(const Rwkv7Args& args) = nullptr;
  bool takes_cell(const Rwkv7Args& args) const { return cells != nullptr && cells(args); }
};

struct Rwkv7Kernel {
  static constexpr const char* kName = "rwkv7";
  Rwkv7Op rwkv7;
  static constexpr auto kOp = &Rwkv7Kernel::rwkv7;
};

}  // namespace recurve
