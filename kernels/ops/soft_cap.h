#pragma once
#include <cstdint>

#include "kernels/ops/op.h"

namespace recurve {

// x = cap tanh(x / cap), in place.
struct SoftCapArgs {
  int64_t count;
  float cap;  // > 0
  float* x;   // (count)
};

struct SoftCapKernel {
  static constexpr const char* kName = "soft_cap";
  Op<SoftCapArgs> soft_cap;
  static constexpr auto kOp = &SoftCapKernel::soft_cap;
};

}  // namespace recurve
