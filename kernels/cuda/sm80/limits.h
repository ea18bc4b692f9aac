#pragma once
#include <cstddef>

#include "kernels/kernels.h"

namespace recurve::cuda::sm80 {

// Has the ops say what they cannot do on a GPU whose blocks of threads can have so many bytes of
// shared memory: see Op::cannot.
void set_limits(Kernels& kernels, size_t shared_memory);

}  // namespace recurve::cuda::sm80
