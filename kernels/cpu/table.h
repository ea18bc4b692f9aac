#pragma once
#include "kernels/kernels.h"

// Every op vectorised for the best instruction set of this machine, found at run time, and
// threaded. The stream must be a CpuStream. Results do not depend on the number of threads.
namespace recurve::cpu {

// Writes what this machine does better over the table.
void fill(Kernels& kernels);

// "avx3", "avx2", "sse2", "neon", ...
const char* isa();

}  // namespace recurve::cpu
