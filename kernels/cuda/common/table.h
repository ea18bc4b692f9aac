#pragma once
#include "kernels/kernels.h"

namespace recurve::cuda {

// Every op, with what is best for the GPUs this build knows.
Kernels table();

}  // namespace recurve::cuda
