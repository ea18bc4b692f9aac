#pragma once
#include "kernels/cuda/sm80/quick_silu.cuh"

// Gates by the hardware's own functions and without branches, so that those of a channel are
// computed next to each other: some units in the last place of fp32, of 1 where sigmoid is small.
namespace recurve::cuda::sm80 {

// Off by at most 2.2e-7. In units in the last place of the result, with the largest errors that PTX
// allows its instructions, and in brackets 1 / (1 + exp(-x)) in fp32: 6 (3) for x > -1, 11 (4) for
// x > -4, and 10 + |x| (4) below, because x log2(e) is rounded.
__device__ inline float quick_sigmoid(float x) {
  return reciprocal(1.0f + power_of_2(__fmul_rn(-x, kLog2e)));
}

// It is 1 - 2 / (1 + exp(2 |x|)) from |x| = 0.6 on, and x + x^3 p(x^2) below, where p fits to 2^-24
// of tanh.
__device__ inline float quick_tanh(float x) {
  const float size = fabsf(x), square = __fmul_rn(x, x);
  float p = -0.006276390f;
  p = __fmaf_rn(p, square, 0.021116216f);
  p = __fmaf_rn(p, square, -0.053875137f);
  p = __fmaf_rn(p, square, 0.13332924f);
  p = __fmaf_rn(p, square, -0.33333331f);
  const float small = __fmaf_rn(__fmul_rn(p, square), x, x);
  const float power = power_of_2(__fmul_rn(size, 2 * kLog2e));
  const float large = copysignf(__fmaf_rn(-2.0f, reciprocal(1.0f + power), 1.0f), x);
  return size < 0.6f ? small : large;
}

}  // namespace recurve::cuda::sm80
