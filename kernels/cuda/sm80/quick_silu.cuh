#pragma once
#include "kernels/cuda/common/math.cuh"

// SiLU made of the hardware's own functions, for kernels that would spend more on a gate than on
// all else. It is good to some units in the last place of fp32 where |x| is of a few, and to 1e-5
// relatively where exp(-x) is as good as 0 or all.
namespace recurve::cuda::sm80 {

constexpr float kLog2e = 1.4426950408889634f;

__device__ inline float power_of_2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// x sigmoid(x).
__device__ inline float quick_silu(float x) {
  return __fmul_rn(x, reciprocal(1.0f + power_of_2(__fmul_rn(-x, kLog2e))));
}

}  // namespace recurve::cuda::sm80
