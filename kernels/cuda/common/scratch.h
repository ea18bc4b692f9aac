#pragma once
#include <cstddef>

namespace recurve::cuda {

// Bytes of the memory that each stream has for what a kernel leaves to the next.
constexpr size_t kScratchBytes = size_t{64} << 20;

}  // namespace recurve::cuda
