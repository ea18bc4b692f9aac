#pragma once

namespace recurve::cuda {

// 1 / x of x >= 1, to one unit in the last place, or 0 where that is below 2^-126: the division
// that rounds exactly takes twice as long, and the ends of wide tiles are arithmetic.
__device__ inline float inverse(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  y = __fmaf_rn(y, __fmaf_rn(-x, y, 1.0f), y);
  return x >= 0x1p126f ? 0.0f : y;
}

// The gate of linear layers that round x to bf16.
__device__ inline float swish(float gate, float up) {
  return gate * inverse(1.0f + expf(-gate)) * up;
}

}  // namespace recurve::cuda
