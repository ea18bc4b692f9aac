#pragma once
#include "kernels/ops/op.h"

namespace recurve {

// What a head's queries and keys are divided by.
enum class DeltaNorm {
  kLength,  // sqrt(sum of squares + eps)
  kSum,     // the sum of the values
};

// What stands between the projections of a delta rule and the rule (kernels/ops/delta_rule.h): for
// each row, queries and keys normed head by head, and of each head of values
//   beta = scale sigmoid(b)
//   g    = A softplus(a + dt_bias)            log of the decay; A = -exp(A_log)
// with softplus(x) = log(1 + exp(x)), which is x from 20 on.
// Source: Yang et al. 2025 (Gated DeltaNet), sec. 3.4; fla ops/gated_delta_rule and layers/kda.py.
struct DeltaGateArgs {
  int rows;
  int H;                 // heads of values
  int HK;                // heads of queries and keys
  int DK;                // query and key size of a head
  int decays;            // of a head: 0 without decay, 1, or DK: those of channels
  DeltaNorm norm;        // of queries and keys
  float eps;             // under the root of kLength
  float beta_scale;      // 1, or 2 where a key's part may change its sign
  int qk_stride;         // floats from a row of q to the next, and of k
  int b_stride;          // of b
  int a_stride;          // of a
  const float* b;        // (rows, H) before the sigmoid; or null: beta is the scale
  const float* a;        // (rows, H, decays)
  const float* A;        // (H) not positive
  const float* dt_bias;  // (H, decays)
  float* q;              // (rows, HK, DK) in place
  float* k;              // (rows, HK, DK) in place
  float* beta;           // (rows, H), dense
  float* g;              // (rows, H, decays), dense; or null without decay
};

struct DeltaGateKernel {
  static constexpr const char* kName = "delta_gate";
  Op<DeltaGateArgs> delta_gate;
  static constexpr auto kOp = &DeltaGateKernel::delta_gate;
};

}  // namespace recurve
