#pragma once
#include "kernels/kernels.h"

// What the kernels of a generation of GPUs say of themselves in their table, apart from the
// functions: written by code that needs neither a GPU nor CUDA.
namespace recurve::cuda {

void set_sm80_capabilities(Kernels& kernels);

// What is otherwise for compute capability 9.0.
void set_sm90_capabilities(Kernels& kernels);

}  // namespace recurve::cuda
