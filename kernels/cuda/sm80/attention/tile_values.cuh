#pragma once
#include <cstdint>

#include "kernels/cuda/common/math.cuh"

// Values in bf16 of a tile of queries, and a query's scores in the four lanes that have them.
namespace recurve::cuda::sm80 {

// Where the 8 values from column 8 `piece` of a row begin.
template <int kWidth>
__device__ int value_at(int row, int piece) {
  return row * kWidth + 8 * (piece ^ row % 8);
}

__device__ inline bool is_unbounded(uint32_t value) { return (value & 0x7f80u) == 0x7f80u; }

// Two values in bf16, with zeros where they are infinite or NaN.
__device__ inline uint32_t bounded(uint32_t pair) {
  if (is_unbounded(pair)) pair &= 0xffff0000u;
  return is_unbounded(pair >> 16) ? pair & 0xffffu : pair;
}
__device__ inline uint4 bounded(const uint4& v) {
  return make_uint4(bounded(v.x), bounded(v.y), bounded(v.z), bounded(v.w));
}
__device__ inline bool has_unbounded(const uint4& v) {
  const uint4 b = bounded(v);
  return b.x != v.x || b.y != v.y || b.z != v.z || b.w != v.w;
}

// The nearest pair of bf16 values; x and y are what remains.
__device__ inline uint32_t cut_pair(float& x, float& y) {
  const uint32_t pair = round_bf16(x, y);
  x = __fsub_rn(x, __uint_as_float(pair << 16));
  y = __fsub_rn(y, __uint_as_float(pair & 0xffff0000u));
  return pair;
}

__device__ inline float quad_max(float x) {
  x = max_of(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return max_of(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ inline float quad_sum(float x) {
  x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

}  // namespace recurve::cuda::sm80
