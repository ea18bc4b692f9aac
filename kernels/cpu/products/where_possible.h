// Included after kernels/cpu/targets.h.
#pragma once
#include <hwy/targets.h>

#include "kernels/cpu/linear/linear.h"

namespace recurve::cpu {

// Products on AVX-512 and what else the machine has or lacks. Null: it lacks it, or AVX-512 is
// not to be used.
inline const LinearProducts* where_possible(const LinearProducts& products, bool has_others) {
  return (hwy::SupportedTargets() & HWY_AVX3) != 0 && has_others ? &products : nullptr;
}

}  // namespace recurve::cpu
