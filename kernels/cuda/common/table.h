#pragma once
#include <cstddef>
#include <vector>

#include "kernels/kernels.h"

namespace recurve::cuda {

// Every op, for GPUs of compute capability `major`.x: the tables that such a GPU can run, the best
// last. shared_memory: bytes that a block of threads can have.
std::vector<Kernels> tables(int major, size_t shared_memory);

}  // namespace recurve::cuda
