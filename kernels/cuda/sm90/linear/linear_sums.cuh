#pragma once
#include "kernels/cuda/common/swish.cuh"
#include "kernels/cuda/sm90/linear/linear_tile.cuh"

// Four columns of a row of a tile: read, added up, gated and written.
namespace recurve::cuda::sm90 {

__device__ inline float4 operator+(const float4& a, const float4& b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// Four values of the tile, of all parts of K.
template <int kParts>
__device__ inline float4 sum_of_parts(const float* mine, int first_rank) {
  float4 parts[kParts];
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    parts[part] = kParts == 1 ? *reinterpret_cast<const float4*>(mine)
                              : load4_shared(mine, first_rank + part);
  }
#pragma unroll
  for (int step = 1; step < kParts; step *= 2) {
#pragma unroll
    for (int part = 0; part < kParts; part += 2 * step) {
      parts[part] = parts[part] + parts[part + step];
    }
  }
  return parts[0];
}

// Rounded before anything is added, in all tilings alike.
__device__ inline float4 operator*(const float4& a, float scale) {
  return make_float4(__fmul_rn(a.x, scale), __fmul_rn(a.y, scale), __fmul_rn(a.z, scale),
                     __fmul_rn(a.w, scale));
}

__device__ inline float4 operator*(const float4& a, const float4& b) {
  return make_float4(__fmul_rn(a.x, b.x), __fmul_rn(a.y, b.y), __fmul_rn(a.z, b.z),
                     __fmul_rn(a.w, b.w));
}

__device__ inline float4 load4(const float* from, int count, bool vector) {
  if (vector) return *reinterpret_cast<const float4*>(from);
  return make_float4(from[0], count > 1 ? from[1] : 0, count > 2 ? from[2] : 0,
                     count > 3 ? from[3] : 0);
}
__device__ inline void store4(float* to, const float4& value, int count, bool vector) {
  if (vector) {
    *reinterpret_cast<float4*>(to) = value;
    return;
  }
  to[0] = value.x;
  if (count > 1) to[1] = value.y;
  if (count > 2) to[2] = value.z;
  if (count > 3) to[3] = value.w;
}

// Stores four values as store4() does, but in bf16; vector: to multiples of 8 bytes.
__device__ inline void store4_bf16(uint16_t* to, const float4& value, int count, bool vector) {
  const uint2 bits = make_uint2(round_bf16(value.x, value.y), round_bf16(value.z, value.w));
  if (vector) {
    *reinterpret_cast<uint2*>(to) = bits;
    return;
  }
  to[0] = static_cast<uint16_t>(bits.x);
  if (count > 1) to[1] = static_cast<uint16_t>(bits.x >> 16);
  if (count > 2) to[2] = static_cast<uint16_t>(bits.y);
  if (count > 3) to[3] = static_cast<uint16_t>(bits.y >> 16);
}

using cuda::swish;
__device__ inline float4 swish(const float4& gate, const float4& up) {
  return make_float4(swish(gate.x, up.x), swish(gate.y, up.y), swish(gate.z, up.z),
                     swish(gate.w, up.w));
}
__device__ inline float4 soft_cap(const float4& x, float cap) {
  return make_float4(cuda::soft_cap(x.x, cap), cuda::soft_cap(x.y, cap), cuda::soft_cap(x.z, cap),
                     cuda::soft_cap(x.w, cap));
}

}  // namespace recurve::cuda::sm90
