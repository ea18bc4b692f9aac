#pragma once
#include <cstdint>

#include "kernels/ops/op.h"

namespace recurve {

// y[i] = x[index[i]]: picks the rows whose logits are wanted.
struct GatherRowsArgs {
  int count;             // rows picked
  int D;                 // width
  const float* x;        // (rows, D)
  const int32_t* index;  // (count), each in [0, rows)
  float* y;              // (count, D); does not overlap x
};

struct GatherRowsKernel {
  static constexpr const char* kName = "gather_rows";
  Op<GatherRowsArgs> gather_rows;
  static constexpr auto kOp = &GatherRowsKernel::gather_rows;
};

}  // namespace recurve
