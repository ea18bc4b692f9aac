#pragma once
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/common/math.cuh"
#include "kernels/tensor.h"

// Values four at a time: of an array that is streamed through once, such as a recurrent state. T is
// what it is kept as: float, or uint16_t for bf16, which is rounded as it is stored.
namespace recurve::cuda::sm80 {

template <typename T>
__device__ inline T* values_of(const StateData& state) {
  return static_cast<T*>(state.data);
}
__device__ inline float* f32_of(const StateData& state) { return values_of<float>(state); }

// Calls visit(T()) with what a state of that type is kept as.
template <typename Visit>
void with_state_type(DType type, Visit visit) {
  if (type == DType::kBF16) {
    visit(uint16_t());
  } else {
    visit(float());
  }
}

__device__ inline float value_of(float x) { return x; }
__device__ inline float value_of(uint16_t x) { return widen_bf16(x); }
template <typename T>
__device__ inline T kept_as(float x) {
  if constexpr (std::is_same_v<T, uint16_t>) {
    return static_cast<uint16_t>(round_bf16(x, 0));
  } else {
    return x;
  }
}

// An output: to y_bf16 where there is one, else to y.
__device__ inline void put(float* y, uint16_t* y_bf16, int64_t at, float value) {
  if (y_bf16 != nullptr) {
    y_bf16[at] = kept_as<uint16_t>(value);
  } else {
    y[at] = value;
  }
}

// What is left of values once they are kept: where a chunk ends and the state stays in registers.
template <typename T>
__device__ inline float rounded(float x) {
  return value_of(kept_as<T>(x));
}
template <typename T>
__device__ inline float4 rounded(const float4& x) {
  return make_float4(rounded<T>(x.x), rounded<T>(x.y), rounded<T>(x.z), rounded<T>(x.w));
}

// Four values side by side, as they are kept.
template <typename T>
using Four = std::conditional_t<std::is_same_v<T, float>, float4, uint2>;

__device__ inline float4 widened(const float4& values) { return values; }
__device__ inline float4 widened(const uint2& pairs) {
  return make_float4(__uint_as_float(pairs.x << 16), __uint_as_float(pairs.x & 0xffff0000u),
                     __uint_as_float(pairs.y << 16), __uint_as_float(pairs.y & 0xffff0000u));
}
template <typename T>
__device__ inline Four<T> four_of(const float4& x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    return make_uint2(round_bf16(x.x, x.y), round_bf16(x.z, x.w));
  }
}

// Loads from an address that is a multiple of as many bytes.
__device__ inline uint4 load_16_bytes(const void* from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ inline uint2 load_8_bytes(const void* from) {
  uint2 v;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(from)
               : "memory");
  return v;
}
__device__ inline float4 load_all(const float* from) {
  const uint4 v = load_16_bytes(from);
  return make_float4(__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                     __uint_as_float(v.w));
}
__device__ inline uint2 load_all(const uint16_t* from) { return load_8_bytes(from); }

// States of at least so many bytes, four times what fits the L2 cache, are read as what is
// to leave it last, and written as what leaves in its turn: an H200 reads and writes them back at
// up to 4.2 TB/s so, and at 4.0 without, or where the stores do not say so too. Of fewer, what
// still waits to be written when the op is done is too large a part, in the way of the weights that
// come next.
template <typename T>
bool outgrows_cache(int64_t values) {
  return values * static_cast<int64_t>(sizeof(T)) >= int64_t{192} << 20;
}
__device__ inline uint64_t last_out() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline uint64_t in_turn() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Loads from such a state.
__device__ inline void load_outgrown(uint4& v, const void* from) {
  asm volatile(
      "ld.global.L1::no_allocate.L2::cache_hint.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(from), "l"(last_out())
      : "memory");
}
__device__ inline void load_outgrown(uint2& v, const void* from) {
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.L2::128B.v2.u32 {%0, %1}, [%2], %3;"
               : "=r"(v.x), "=r"(v.y)
               : "l"(from), "l"(last_out())
               : "memory");
}
__device__ inline void load_outgrown(float4& v, const void* from) {
  load_outgrown(reinterpret_cast<uint4&>(v), from);
}
__device__ inline void store_outgrown(void* to, const uint4& v) {
  asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "r"(v.x),
               "r"(v.y), "r"(v.z), "r"(v.w), "l"(in_turn())
               : "memory");
}
__device__ inline void store_outgrown(void* to, const uint2& v) {
  asm volatile("st.global.L2::cache_hint.v2.u32 [%0], {%1, %2}, %3;" ::"l"(to), "r"(v.x), "r"(v.y),
               "l"(in_turn())
               : "memory");
}
__device__ inline void store_outgrown(void* to, const float4& v) {
  store_outgrown(to, reinterpret_cast<const uint4&>(v));
}

// Up to four values, zeros beyond `count`. kVector: `from` is a multiple of the size of four, and
// all four or none are there.
template <bool kVector, typename T>
__device__ inline Four<T> load_four(const T* from, int count) {
  if (count <= 0) return {};
  if constexpr (kVector) return load_all(from);
  return four_of<T>(make_float4(value_of(from[0]), count > 1 ? value_of(from[1]) : 0,
                                count > 2 ? value_of(from[2]) : 0,
                                count > 3 ? value_of(from[3]) : 0));
}
template <bool kVector, typename T>
__device__ inline float4 load4(const T* from, int count) {
  return widened(load_four<kVector>(from, count));
}

// The counterpart of load_four.
template <bool kVector, typename T>
__device__ inline void store_four(T* to, const Four<T>& four, int count) {
  if (count <= 0) return;
  if constexpr (kVector) {
    __stcs(reinterpret_cast<Four<T>*>(to), four);
    return;
  }
  const float4 value = widened(four);
  to[0] = kept_as<T>(value.x);
  if (count > 1) to[1] = kept_as<T>(value.y);
  if (count > 2) to[2] = kept_as<T>(value.z);
  if (count > 3) to[3] = kept_as<T>(value.w);
}
template <bool kVector, typename T>
__device__ inline void store4(T* to, const float4& value, int count) {
  store_four<kVector>(to, four_of<T>(value), count);
}

constexpr int kLineBytes = 128;

// Asks for a line of kLineBytes to be brought close, whatever is in it by then: so before
// wait_for_previous() too.
__device__ inline void prefetch_to_l2(const void* line) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
}

}  // namespace recurve::cuda::sm80
