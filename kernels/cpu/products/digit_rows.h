// Rows of x in digits, for products with weights in int8 and int4. Included where
// HWY_PUSH_ATTRIBUTES has named AVX-512, behind the standard headers.
//
// Within a group of 64 columns x = 2^(e - 29) (d_3 2^24 + d_2 2^16 + d_1 2^8 + d_0), d_i from -128
// to 127, where the group's largest size is in [2^e, 2^(e + 1)), and e is -90 at least. So what is
// a 64th of the largest or more is exact, and what is less is rounded by a 2^30th of the largest at
// most: less than what fp32 makes of the largest one's product.
#pragma once
#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/ceil_div.h"
#include "kernels/cpu/products/amx.h"
#include "kernels/cpu/products/packed_outputs.h"

namespace recurve::cpu::amx {

using avx512::kGroup;

inline constexpr int kDigits = 4;
inline constexpr int64_t kQuads = kGroup / 4;         // of a group's columns, which lie together
inline constexpr int64_t kXBytes = kGroup * kDigits;  // of a row's group

// Digits, and of each group two values in fp32.
inline int64_t row_bytes(int64_t K) {
  const int64_t bytes = ceil_div(K, kGroup) * (kXBytes + 2 * static_cast<int64_t>(sizeof(float)));
  return ceil_div(bytes, int64_t{64}) * 64;
}

// What the digits of a group are multiples of.
struct GroupUnit {
  explicit GroupUnit(const __m512 (&x)[4]) {
    __m512 largest = _mm512_setzero_ps();
    __mmask16 nan = 0;
    HWY_UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      largest = _mm512_max_ps(largest, _mm512_abs_ps(x[i]));
      nan |= _mm512_cmp_ps_mask(x[i], x[i], _CMP_UNORD_Q);
    }
    const float size = _mm512_reduce_max_ps(largest);
    constexpr int kBias = 127, kMantissa = 23, kLeast = -90, kBits = 29;
    const int exponent = std::max((std::bit_cast<int32_t>(size) >> kMantissa) - kBias, kLeast);
    per_one = std::bit_cast<float>((kBias + kBits - exponent) << kMantissa);
    unit = std::bit_cast<float>((kBias + exponent - kBits) << kMantissa);
    if (nan != 0 || !(size <= std::numeric_limits<float>::max())) {
      per_one = 0;
      unit = std::numeric_limits<float>::quiet_NaN();
    }
  }
  float unit, per_one;  // 2^(e - 29), and one over it
};

// The digits of a group's x: of each four columns those of d_0, of d_1, ...: (kQuads, kDigits, 4).
template <class Format>
HWY_INLINE void split_group(const __m512 (&x)[4], float per_one, __m512i (&digits)[4]) {
  const __m512i offset = _mm512_set1_epi32(0x00808080);
  const __m512i turn =
      _mm512_broadcast_i32x4(_mm_set_epi8(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0));
  HWY_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(x[i], _mm512_set1_ps(per_one)));
    digits[i] = _mm512_xor_si512(_mm512_add_epi32(whole, offset), offset);
  }
  Format::order(digits);
  HWY_UNROLL(4)
  for (int i = 0; i < 4; ++i) digits[i] = _mm512_shuffle_epi8(digits[i], turn);
}

// (kLanes, 4), turned over: to[i] has number i of each four, in an order that in_order() mends.
HWY_INLINE void turn_fours(const __m512i (&from)[4], __m512i (&to)[4]) {
  const __m512i a = _mm512_unpacklo_epi32(from[0], from[1]);
  const __m512i b = _mm512_unpackhi_epi32(from[0], from[1]);
  const __m512i c = _mm512_unpacklo_epi32(from[2], from[3]);
  const __m512i d = _mm512_unpackhi_epi32(from[2], from[3]);
  to[0] = _mm512_unpacklo_epi64(a, c);
  to[1] = _mm512_unpackhi_epi64(a, c);
  to[2] = _mm512_unpacklo_epi64(b, d);
  to[3] = _mm512_unpackhi_epi64(b, d);
}
HWY_INLINE __m512i in_order(__m512i turned) {
  return _mm512_permutexvar_epi32(
      _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0), turned);
}

// Up to kRows rows of x, in bytes: (K / kGroup, kDigits, kQuads, rows, 4), of a single row
// (K / kGroup, kQuads, kDigits, 4), and zeros where a group has no more columns. Then the units of
// the digits, (K / kGroup, rows), and the sums of x in the same order.
template <class Format>
void split_rows(const float* x, int64_t K, int64_t rows, std::byte* to) {
  const auto some = static_cast<__mmask16>((1u << rows) - 1);
  const int64_t groups = ceil_div(K, kGroup);
  auto* units = reinterpret_cast<float*>(to + groups * rows * kXBytes);
  auto* sums = units + groups * rows;
  for (int64_t g = 0; g < groups; ++g, to += rows * kXBytes) {
    Vectors digits[kDigits] = {};
    for (int64_t row = 0; row < rows; ++row) {
      const float* from = x + row * K + g * kGroup;
      __m512 values[4];
      HWY_UNROLL(4)
      for (int64_t i = 0; i < 4; ++i) {
        values[i] = load(from + i * kLanes, K - g * kGroup - i * kLanes);
      }
      const GroupUnit unit(values);
      units[g * rows + row] = unit.unit;
      if constexpr (Format::kMinimum) {
        sums[g * rows + row] = _mm512_reduce_add_ps(_mm512_add_ps(
            _mm512_add_ps(values[0], values[1]), _mm512_add_ps(values[2], values[3])));
      }
      __m512i quads[4], turned[kDigits];
      split_group<Format>(values, unit.per_one, quads);
      if (rows == 1) {
        for (int i = 0; i < 4; ++i) _mm512_storeu_si512(to + i * kGroup, quads[i]);
        continue;
      }
      turn_fours(quads, turned);
      HWY_UNROLL(4)
      for (int d = 0; d < kDigits; ++d) digits[d][row] = in_order(turned[d]);
    }
    if (rows == 1) continue;
    for (int d = 0; d < kDigits; ++d) {
      avx512::transpose(digits[d]);
      for (int64_t quad = 0; quad < kQuads; ++quad) {
        _mm512_mask_storeu_epi32(to + (d * kQuads + quad) * rows * 4, some, digits[d][quad]);
      }
    }
  }
}

// Rows that lie together.
struct XRows {
  XRows(const std::byte* split, int64_t row, int64_t row_end, int64_t K)
      : rows(std::min(row_end - row, kRows)),
        digits(split + row * row_bytes(K)),
        units(reinterpret_cast<const float*>(digits + ceil_div(K, kGroup) * rows * kXBytes)),
        sums(units + ceil_div(K, kGroup) * rows) {}

  const int64_t rows;
  const std::byte* const digits;
  const float *const units, *const sums;
};

}  // namespace recurve::cpu::amx
