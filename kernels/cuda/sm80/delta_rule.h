#pragma once
#include "kernels/kernels.h"

namespace recurve::cuda::sm80 {

// Keys of a head, at most: a warp has all keys of its columns in registers.
constexpr int kMostDeltaKeys = 256;

}  // namespace recurve::cuda::sm80
