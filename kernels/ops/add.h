#pragma once
#include <cstdint>

namespace recurve {

// y = a + b.
struct AddArgs {
  int64_t count;
  const float* a;  // (count)
  const float* b;  // (count)
  float* y;        // (count); may be a or b
};

}  // namespace recurve
