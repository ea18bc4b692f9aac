#pragma once
#include <vector>

#include "kernels/kernels.h"

namespace recurve::cuda {

// Every op, for GPUs of compute capability `major`.x: the tables that such a GPU can run, the best
// last.
std::vector<Kernels> tables(int major);

}  // namespace recurve::cuda
