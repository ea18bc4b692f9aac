#pragma once
#include <cstdint>

namespace recurve {

// x = cap tanh(x / cap), in place.
struct SoftCapArgs {
  int64_t count;
  float cap;  // > 0
  float* x;   // (count)
};

}  // namespace recurve
