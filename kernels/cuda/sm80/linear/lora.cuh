#pragma once
// What both kernels of adapters have in common.
#include <algorithm>

#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/capabilities.h"
#include "kernels/cuda/sm80/linear/lora_tables.h"

namespace recurve::cuda::sm80 {

using lora::Part;
using lora::Table;
using lora::Tile;

constexpr int kFewRows = 256;                                  // of a step, in tiles of four
constexpr int kFour = static_cast<int>(LoraArgs::kInnerStep);  // ranks, and values of a thread

// Four values as they lie in memory, zeros beyond `count` of them.
template <bool kVector>
__device__ inline float4 load_raw(const float* from, int64_t count) {
  if (kVector && count >= kFour) return *reinterpret_cast<const float4*>(from);
  return make_float4(count > 0 ? from[0] : 0, count > 1 ? from[1] : 0, count > 2 ? from[2] : 0,
                     count > 3 ? from[3] : 0);
}
template <bool kVector>
__device__ inline uint2 load_raw(const uint16_t* from, int64_t count) {
  if (kVector && count >= kFour) return *reinterpret_cast<const uint2*>(from);
  const auto at = [&](int i) { return count > i ? uint32_t{from[i]} : 0u; };
  return make_uint2(at(0) | at(1) << 16, at(2) | at(3) << 16);
}
__device__ inline float4 widen(const float4& values) { return values; }
__device__ inline float4 widen(const uint2& bits) {
  return make_float4(__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u),
                     __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xffff0000u));
}
template <bool kVector, typename T>
__device__ inline float4 load4(const T* from, int64_t count) {
  return widen(load_raw<kVector>(from, count));
}

__device__ inline void fetch(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

inline bool parts_aligned(const LoraArgs& args, const void* LoraPart::* matrix) {
  return std::ranges::all_of(args.groups, [&](const LoraRows& group) {
    return std::ranges::all_of(group.layers[static_cast<size_t>(args.layer)],
                               [&](const LoraPart& part) { return aligned(part.*matrix); });
  });
}

// visit: of template parameters kVector and the table's type. Neither changes a sum.
template <bool kVector, typename Visit>
void with_table(const LoraArgs& args, std::span<const int32_t> others, Visit visit) {
  size_t rows = others.size();
  for (const LoraRows& group : args.groups) rows += group.rows.size();
  if (rows > kFewRows) return visit.template operator()<kVector, Table<8, false>>();
  if (!lora::TableSize<4>(args, others).fits<true>())
    return visit.template operator()<kVector, Table<4, false>>();
  visit.template operator()<kVector, Table<4, true>>();
}
template <typename Visit>
void with_form(bool vector, const LoraArgs& args, std::span<const int32_t> others, Visit visit) {
  vector ? with_table<true>(args, others, visit) : with_table<false>(args, others, visit);
}

}  // namespace recurve::cuda::sm80
