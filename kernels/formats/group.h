#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "kernels/weight_format.h"

// What formats that go group by group share. Everything here is single additions, products and
// quotients in fp32, so that it has the same bits on every machine and in numpy
// (weights_tools/packing.py): these files are compiled without fused multiply-add.
namespace recurve {

constexpr uint16_t kNanScale = 0x7fc0;  // of a group that cannot be packed, in bf16
constexpr float kTooLarge = 0x1p112f;   // values are packed below this in size

// To the nearest integer, ties to even, for |x| below 2^22.
inline float nearest(float x) {
  constexpr float kShift = 12582912;  // 1.5 * 2^23: from it on there are no fractions
  return (x + kShift) - kShift;
}

template <size_t G>
bool can_pack(const std::array<float, G>& values) {
  bool can = true;
  for (const float value : values) can &= std::fabs(value) < kTooLarge;  // not a number: cannot
  return can;
}

// A row, group by group; the last is filled up with zeros.
template <int64_t G, typename PackGroup>
void pack_groups(const float* row, int64_t K, std::byte* data, int64_t group_bytes,
                 std::byte* scales, int64_t group_scale, const PackGroup& pack_group) {
  for (int64_t k = 0; k < K; k += G) {
    std::array<float, static_cast<size_t>(G)> group = {};
    std::copy_n(row + k, std::min(G, K - k), group.begin());
    pack_group(group, data, scales);
    data += group_bytes;
    scales += group_scale;
  }
}

template <int64_t G, typename UnpackGroup>
void unpack_groups(const std::byte* data, int64_t group_bytes, const std::byte* scales,
                   int64_t group_scale, int64_t K, float* row, const UnpackGroup& unpack_group) {
  for (int64_t k = 0; k < K; k += G) {
    std::array<float, static_cast<size_t>(G)> group;
    unpack_group(data, scales, group);
    std::copy_n(group.begin(), std::min(G, K - k), row + k);
    data += group_bytes;
    scales += group_scale;
  }
}

}  // namespace recurve
