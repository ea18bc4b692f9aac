#pragma once
#include <cstddef>

#include "kernels/ops/router.h"

namespace recurve::cuda::sm80 {

// Words of a bit for each expert.
__host__ __device__ constexpr int words_of_experts(int E) { return (E + 31) / 32; }

// Bytes of shared memory that the choice of a row's experts takes.
inline size_t bytes_of_routed_row(const RouterArgs& a) {
  const auto E = static_cast<size_t>(a.E), groups = static_cast<size_t>(a.groups);
  return (2 * E + static_cast<size_t>(words_of_experts(a.E)) + groups) * sizeof(float);
}

}  // namespace recurve::cuda::sm80
