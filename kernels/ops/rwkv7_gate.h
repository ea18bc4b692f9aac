#pragma once
#include "kernels/ops/op.h"

namespace recurve {

// What stands between RWKV-7's projections and its recurrence, for each row and channel c of D, in
// heads of N channels:
//   lw    = -exp(-1/2) sigmoid(w)                        log of the decay, above -0.60653066
//   alpha = sigmoid(a)                                   how much of a key is replaced
//   kk    = k k_k / max(|k k_k| over the head, 1e-12)    the key that is replaced: of length 1
//   k'    = k (1 + (alpha - 1) k_a)                      the key that is added
//   v'    = v + (v_first - v) sigmoid(m)                 the value, mixed with the first layer's
// kk is of the key before it is changed. Without m the value stays as it is.
// Source: Peng et al. 2025 (RWKV-7), eq. 4 to 14; BlinkDL's RWKV-LM, rwkv_v7_numpy.py, for
// the length below which a key is not normalised.
struct Rwkv7GateArgs {
  int rows;
  int H;                 // heads
  int N;                 // channels of a head; D = H N
  const float* k_k;      // (D)
  const float* k_a;      // (D)
  const float* v_first;  // (rows, D), or null where m is
  const float* m;        // (rows, D) before its sigmoid, or null: values stay
  float* w;              // (rows, D) before its sigmoid; becomes lw
  float* a;              // (rows, D) before its sigmoid; becomes alpha
  float* k;              // (rows, D) becomes k'
  float* v;              // (rows, D) becomes v'
  float* kk;             // (rows, D) does not overlap the others
};

struct Rwkv7GateKernel {
  static constexpr const char* kName = "rwkv7_gate";
  Op<Rwkv7GateArgs> rwkv7_gate;
  static constexpr auto kOp = &Rwkv7GateKernel::rwkv7_gate;
};

}  // namespace recurve
