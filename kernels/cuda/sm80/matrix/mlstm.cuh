#pragma once
#include "kernels/cuda/common/math.cuh"

// What the mLSTM kernels share.
namespace recurve::cuda::sm80 {

__device__ inline float gate(float x, float cap) { return cap > 0 ? soft_cap(x, cap) : x; }

}  // namespace recurve::cuda::sm80
