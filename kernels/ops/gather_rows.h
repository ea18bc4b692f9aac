#pragma once
#include <cstdint>

namespace recurve {

// y[i] = x[index[i]]: picks the rows whose logits are wanted.
struct GatherRowsArgs {
  int count;             // rows picked
  int D;                 // width
  const float* x;        // (rows, D)
  const int32_t* index;  // (count), each in [0, rows)
  float* y;              // (count, D); does not overlap x
};

}  // namespace recurve
