#pragma once
#include "kernels/ops/op.h"
#include "kernels/tensor.h"

namespace recurve {

// x[r] = E[token[r]], widened to fp32. Backends of the host take E in any format.
struct EmbedArgs {
  int rows;
  Matrix E;              // (V, D)
  const int32_t* token;  // (rows), each in [0, V)
  float* x;              // (rows, D)
};

struct EmbedKernel {
  static constexpr const char* kName = "embed";
  Op<EmbedArgs> embed;
  static constexpr auto kOp = &EmbedKernel::embed;
};

}  // namespace recurve
