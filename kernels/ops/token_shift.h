#pragma once
#include <cstdint>

#include "kernels/ops/op.h"
#include "kernels/ops/ragged.h"

namespace recurve {

// Each row mixed with the row before it, in one way for each of n readers:
//   y_i[t, d] = x[t, d] + (x[t - 1, d] - x[t, d]) mu_i[d]
// The row before the first of this call comes from the state, which is left holding the last row;
// a state of zeros is a text that begins. A row's result does not depend on where its text was cut.
// Source: Peng et al. 2025 (RWKV-7), eq. 3; BlinkDL's RWKV-LM, rwkv_v7_numpy.py.
struct TokenShiftArgs {
  static constexpr int kMost = 6;  // readers

  Ragged seqs;
  int D;                   // channels
  int n;                   // readers; 1 to kMost
  int x_stride;            // floats from a row of x to the next
  const float* x;          // (rows, D)
  const float* mu[kMost];  // the first n: (D) each
  float* state;            // (slots, D) the row before, read and written in place
  float* y[kMost];         // the first n: (rows, D) each; do not overlap x
  // The first n: (rows, D) each, or null; where this backend's linear op takes bf16. A reader that
  // has one may have null as its y.
  uint16_t* y_bf16[kMost] = {};
  // Where TokenShiftOp::takes_norm says so: the layer norm (layer_norm.h, one group) that x goes
  // through first, or null.
  const float* norm = nullptr;       // (D)
  const float* norm_bias = nullptr;  // (D)
  float norm_eps = 0;
};

struct TokenShiftOp : Op<TokenShiftArgs> {
  // Whether it takes TokenShiftArgs::norm of these arguments. null: never.
  bool (*norms)(const TokenShiftArgs& args) = nullptr;
  bool takes_norm(const TokenShiftArgs& args) const { return norms != nullptr && norms(args); }
};

struct TokenShiftKernel {
  static constexpr const char* kName = "token_shift";
  TokenShiftOp token_shift;
  static constexpr auto kOp = &TokenShiftKernel::token_shift;
};

}  // namespace recurve
