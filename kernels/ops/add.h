#pragma once
#include <cstdint>

#include "kernels/ops/op.h"

namespace recurve {

// y = a + b.
struct AddArgs {
  int64_t count;
  const float* a;  // (count)
  const float* b;  // (count)
  float* y;        // (count); may be a or b
};

struct AddKernel {
  static constexpr const char* kName = "add";
  Op<AddArgs> add;
  static constexpr auto kOp = &AddKernel::add;
};

}  // namespace recurve
