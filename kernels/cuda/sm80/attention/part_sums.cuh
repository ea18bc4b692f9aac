#pragma once
#include "kernels/cuda/common/math.cuh"
#include "kernels/ops/paged_attention.h"

// What parts of kAttentionPart keys leave of a query, and how these are joined from the oldest to
// the newest: in every kernel by the same operations, none of which is fused with another.
namespace recurve::cuda::sm80 {

// What sums of values are multiplied by when a part joins those before it.
struct PartScales {
  float before, part;

  __device__ float join(float sum_before, float sum_of_part) const {
    return __fmaf_rn(sum_of_part, part, __fmul_rn(sum_before, before));
  }
};

// The largest score and the sum of weights of all parts so far.
struct PartSums {
  float largest = -INFINITY, weights = 0;

  __device__ PartScales join(bool first, float part_largest, float part_weights) {
    if (first) {
      largest = part_largest;
      weights = part_weights;
      return {0, 1};
    }
    const float both = max_of(largest, part_largest);
    const PartScales scales{expf(__fsub_rn(largest, both)), expf(__fsub_rn(part_largest, both))};
    largest = both;
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

// An output. Sums with a value that is not finite are NaN, whichever weights it met on the way, and
// zeros have one sign. A function that is called: it is the same code wherever it is needed.
static __device__ __noinline__ float finished(float sum, float weights, const float* gate) {
  const float o = __fadd_rn(__fdiv_rn(sum, weights), 0.0f);
  if (!isfinite(o)) return NAN;
  return gate == nullptr ? o : __fmul_rn(o, sigmoid(*gate));
}

}  // namespace recurve::cuda::sm80
