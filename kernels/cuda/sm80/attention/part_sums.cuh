#pragma once
#include "kernels/cuda/common/math.cuh"
#include "kernels/ops/paged_attention.h"

// What parts of kAttentionPart keys leave of a query, and how these are joined from the oldest to
// the newest: in every kernel by the same operations, none of which is fused with another.
//
// Scores are exponents of two. Weights are relative to the least whole number that no score so far
// exceeds, their bound: so what was summed before a larger score is met is scaled by a power of
// two, which rounds nothing but what is too small for a normal value.
namespace recurve::cuda::sm80 {

// What a query is multiplied by, so that its products with keys are scores.
__device__ inline float score_scale(float scale) { return __fmul_rn(scale, 1.44269504f); }

// 2^x of a whole number up to 0; 0 where that is no normal value, and where x is NaN.
__device__ inline float power_of_two(float x) {
  return x >= -126.0f ? __int_as_float((127 + __float2int_rn(x)) << 23) : 0.0f;
}

// What weights are relative to: a query that has not seen a key yet has nothing to be scaled.
__device__ inline float origin_of(float bound) { return bound == -INFINITY ? 0.0f : bound; }

// The weight of a score, to 2^-22 of it.
__device__ inline float weight_of(float score, float origin) {
  float weight;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(weight) : "f"(__fsub_rn(score, origin)));
  return weight;
}

// What sums of values are multiplied by when a part joins those before it.
struct PartScales {
  float before, part;

  __device__ float join(float sum_before, float sum_of_part) const {
    return __fmaf_rn(sum_of_part, part, __fmul_rn(sum_before, before));
  }
};

// The bound of scores and the sum of weights of all parts so far.
struct PartSums {
  float bound = -INFINITY, weights = 0;

  // What sums of values are multiplied by in the end.
  __device__ float reciprocal() const { return __fdiv_rn(1.0f, weights); }

  __device__ PartScales join(bool first, float part_bound, float part_weights) {
    if (first) {
      bound = part_bound;
      weights = part_weights;
      return {0, 1};
    }
    const float both = max_of(bound, part_bound);
    const PartScales scales{power_of_two(__fsub_rn(bound, both)),
                            power_of_two(__fsub_rn(part_bound, both))};
    bound = both;
    weights = scales.join(weights, part_weights);
    return scales;
  }
};

__device__ inline const float* query_of(const PagedAttentionArgs& a, int64_t row, int64_t head) {
  return a.q + row * a.q_stride + head * (a.q_head_stride == 0 ? a.D : a.q_head_stride);
}

__device__ inline const float* gate_of(const PagedAttentionArgs& a, int64_t row, int64_t head,
                                       int d) {
  if (a.gate == nullptr) return nullptr;
  return a.gate + row * a.gate_stride + head * a.gate_head_stride + d;
}

// Multiplies by the gate. A function that is called: it is the same code wherever it is needed.
static __device__ __noinline__ float gated(float o, float gate) {
  return __fmul_rn(o, sigmoid(gate));
}

// An output: sum times the reciprocal of the sum of weights. Sums with a value that is not finite
// are NaN, whichever weights it met on the way, and zeros have one sign.
__device__ inline float finished(float sum, float reciprocal, const float* gate) {
  const float o = __fadd_rn(__fmul_rn(sum, reciprocal), 0.0f);
  if (!isfinite(o)) return NAN;
  return gate == nullptr ? o : gated(o, *gate);
}

}  // namespace recurve::cuda::sm80
