#pragma once
#include "kernels/cuda/sm80/rows/activate.cuh"
#include "kernels/ops/ssd.h"

namespace recurve::cuda::sm80 {

// Time step of a row, and the logarithm of its decay.
struct SsdStep {
  float dt, log_decay;
};
struct SsdInputs {
  float dt, bias, A;
};
__device__ inline SsdInputs ssd_inputs_at(const SsdArgs& a, int64_t row, int head) {
  return {a.dt[row * a.dt_stride + head], a.dt_bias[head], a.A[head]};
}
__device__ inline SsdStep ssd_step_of(const SsdArgs& a, const SsdInputs& in) {
  const float dt = softplus(in.dt + in.bias);
  // fminf and fmaxf would hide a NaN.
  const float kept = isnan(dt) ? dt : fminf(fmaxf(dt, a.dt_min), a.dt_max);
  return {kept, __fmul_rn(kept, in.A)};
}
__device__ inline SsdStep ssd_step_at(const SsdArgs& a, int64_t row, int head) {
  return ssd_step_of(a, ssd_inputs_at(a, row, head));
}

}  // namespace recurve::cuda::sm80
