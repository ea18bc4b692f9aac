#pragma once
#include <cstdint>

#include "kernels/ops/op.h"
#include "kernels/ops/ragged.h"

namespace recurve {

// Griffin's real-gated linear recurrent unit, and the product with its other branch: for D
// independent channels, with
//   log a = rate sigmoid(r)                        rate = -8 softplus(Lambda), not positive
//   x     = m sigmoid(i) u,  m = sqrt(1 - a^2)     1 - a^2 as -expm1(2 log a): a is close to 1
//   h     = a h + x
//   y     = gelu_tanh(branch) h                    0.5 z (1 + tanh(sqrt(2 / pi) (z + 0.044715
//   z^3)))
// The first row of a session, at position 0, has a = 0 and m = 1.
//
// The rows of a sequence are cut into chunks of `chunk` from its first row on; inside a chunk an
// implementation may combine rows in any order: h_t = exp(G_t) h_0 + sum_{j <= t} exp(G_t - G_j)
// x_j with G the sums of log a, no exponent of which is positive.
// Source: De et al. 2024 (Griffin), eq. 1 to 4 and app. A; transformers'
// modeling_recurrent_gemma.py for the first row.
struct RgLruArgs {
  Ragged seqs;
  int D;                    // channels
  int chunk;                // rows; at least 1
  int branch_stride;        // floats from a row of branch to the next
  const float* u;           // (rows, D)
  const float* i;           // (rows, D) before its sigmoid
  const float* r;           // (rows, D) before its sigmoid
  const float* branch;      // (rows, D) before its function
  const float* rate;        // (D)
  const int32_t* position;  // (rows) in the session
  float* h;                 // (slots, D) read and written in place
  float* y;                 // (rows, D), dense; does not overlap the inputs
};

struct RgLruKernel {
  static constexpr const char* kName = "rg_lru";
  Op<RgLruArgs> rg_lru;
  static constexpr auto kOp = &RgLruKernel::rg_lru;
};

}  // namespace recurve
