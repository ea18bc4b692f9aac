#pragma once
#include <cstdint>

#include "kernels/tensor.h"

// Values four at a time: of an array that is streamed through once, such as a recurrent state.
namespace recurve::cuda::sm80 {

__device__ inline float* f32_of(const StateData& state) { return static_cast<float*>(state.data); }

// Up to four values, zeros beyond `count`. kVector: `from` is a multiple of 16 bytes, and all four
// or none are there.
template <bool kVector>
__device__ inline float4 load4(const float* from, int count) {
  if (count <= 0) return make_float4(0, 0, 0, 0);
  if constexpr (kVector) return __ldcs(reinterpret_cast<const float4*>(from));
  return make_float4(from[0], count > 1 ? from[1] : 0, count > 2 ? from[2] : 0,
                     count > 3 ? from[3] : 0);
}

// The counterpart of load4.
template <bool kVector>
__device__ inline void store4(float* to, const float4& value, int count) {
  if (count <= 0) return;
  if constexpr (kVector) {
    __stcs(reinterpret_cast<float4*>(to), value);
    return;
  }
  to[0] = value.x;
  if (count > 1) to[1] = value.y;
  if (count > 2) to[2] = value.z;
  if (count > 3) to[3] = value.w;
}

// Asks for a line of 128 bytes to be brought close, whatever is in it by then: so before
// wait_for_previous() too.
__device__ inline void prefetch_to_l2(const float* line) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
}

}  // namespace recurve::cuda::sm80
