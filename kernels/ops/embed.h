#pragma once
#include "kernels/tensor.h"

namespace recurve {

// x[r] = E[token[r]], widened to fp32.
struct EmbedArgs {
  int rows;
  Matrix E;              // (V, D)
  const int32_t* token;  // (rows), each in [0, V)
  float* x;              // (rows, D)
};

}  // namespace recurve
