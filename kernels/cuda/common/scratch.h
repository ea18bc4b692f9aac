#pragma once
#include <cstddef>

namespace recurve::cuda {

// Bytes of the memory that each stream has for what a kernel leaves to the next.
constexpr size_t kScratchBytes = size_t{64} << 20;

// Bytes of the memory that each stream of a device that launches early has for the largest matrix
// of packed weights that it unpacks to bf16 for one layer.
constexpr size_t kUnpackedBytes = size_t{192} << 20;

}  // namespace recurve::cuda
