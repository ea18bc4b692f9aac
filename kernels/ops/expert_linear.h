#pragma once
#include <cstdint>

#include "kernels/ops/op.h"
#include "kernels/tensor.h"

namespace recurve {

// Products of rows with the matrices of their experts, accumulated in fp32. W has those of E
// experts one after the other, N rows each. Pairs of a row and an expert are those of a router
// (router.h), and position i is that of pair p = pair[i], of row r = p / top and expert e:
//   without `weight`:  y[i] = silu(first half of z) * second half, z = W_e x[r]
//   with it:           y[r] = y[r] + weight[p] W_e x[i], in the order of the experts' numbers
// x may be rounded to bf16, as MatrixOp::rounds says. What a row gives depends on its x, its
// experts and its weights alone: not on how many rows there are, nor on which others an expert has.
// Each chosen matrix is read once for all of its rows, and others are not read.
struct ExpertLinearArgs {
  int rows;
  int top;
  int E;
  Matrix W;                        // (E N, K)
  const int32_t* begin = nullptr;  // (E + 1); null: one expert, which all rows go to
  const int32_t* pair = nullptr;   // (rows top); null as `begin` is
  const float* weight = nullptr;   // (rows top) or null
  const float* x;                  // (rows, K), or with weights (rows top, K)
  float* y;                        // (rows top, N / 2), or with weights (rows, N)

  int64_t outputs() const { return W.N / E; }  // N
};

struct ExpertLinearKernel {
  static constexpr const char* kName = "expert_linear";
  MatrixOp<ExpertLinearArgs> expert_linear;
  static constexpr auto kOp = &ExpertLinearKernel::expert_linear;
};

}  // namespace recurve
