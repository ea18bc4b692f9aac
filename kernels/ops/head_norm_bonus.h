#pragma once
#include <cstdint>

#include "kernels/ops/op.h"

namespace recurve {

// RWKV-7's way out of its recurrence, for each row and each head of N channels:
//   y = (LayerNorm(o) w + b + (sum over the head of r k r_k) v) g
// with the norm over the head, biased variance. The bonus comes after the norm, with the key and
// the value that went into the state, and the gate comes last.
// Source: Peng et al. 2025 (RWKV-7), eq. 19 to 22; BlinkDL's RWKV-LM, rwkv_v7_numpy.py.
struct HeadNormBonusArgs {
  int rows;
  int H;             // heads
  int N;             // channels of a head; D = H N
  float eps;         // of the norm
  const float* o;    // (rows, D)
  const float* r;    // (rows, D)
  const float* k;    // (rows, D)
  const float* v;    // (rows, D)
  const float* g;    // (rows, D)
  const float* r_k;  // (D)
  const float* w;    // (D)
  const float* b;    // (D)
  float* y;          // (rows, D); may be o
  // (rows, D) instead of y, or null; where this backend's linear op takes bf16
  uint16_t* y_bf16 = nullptr;
};

struct HeadNormBonusKernel {
  static constexpr const char* kName = "head_norm_bonus";
  Op<HeadNormBonusArgs> head_norm_bonus;
  static constexpr auto kOp = &HeadNormBonusKernel::head_norm_bonus;
};

}  // namespace recurve
