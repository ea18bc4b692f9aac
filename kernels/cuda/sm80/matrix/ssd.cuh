#pragma once
#include "kernels/cuda/sm80/rows/activate.cuh"
#include "kernels/ops/ssd.h"

namespace recurve::cuda::sm80 {

// Time step of a row, and the logarithm of its decay.
struct SsdStep {
  float dt, log_decay;
};
__device__ inline SsdStep ssd_step_at(const SsdArgs& a, int64_t row, int head) {
  const float dt = softplus(a.dt[row * a.dt_stride + head] + a.dt_bias[head]);
  // fminf and fmaxf would hide a NaN.
  const float kept = isnan(dt) ? dt : fminf(fmaxf(dt, a.dt_min), a.dt_max);
  return {kept, __fmul_rn(kept, a.A[head])};
}

}  // namespace recurve::cuda::sm80
