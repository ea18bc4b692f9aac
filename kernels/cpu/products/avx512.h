// What products on AVX-512 share. Included where HWY_PUSH_ATTRIBUTES has named these instructions.
#pragma once
#include <hwy/base.h>
#include <immintrin.h>

#include <cstdint>

namespace recurve::cpu::avx512 {

inline constexpr int64_t kLanes = 16;  // of 32 bits
using Vectors = __m512i[kLanes];

// sums + w x, of bytes of w without a sign and of x with one. Of the intrinsic g++ 12 stores the
// sums each time, though they are in registers, which takes twice as long.
HWY_INLINE void add_products(__m512i& sums, __m512i w, __m512i x) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(w), "v"(x));
}

// v[i] = lane i of each vector: a matrix of 16 x 16 words of 32 bits, turned over.
HWY_INLINE void transpose(Vectors& v) {
  Vectors pairs, fours, eights;
  HWY_UNROLL(16)
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  HWY_UNROLL(16)
  for (int i = 0; i < 16; i += 4) {
    fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  // fours[4 b + c]: of the rows 4 b to 4 b + 3 the columns c, 4 + c, 8 + c, 12 + c.
  HWY_UNROLL(8)
  for (int c = 0; c < 4; ++c) {
    eights[c] = _mm512_shuffle_i32x4(fours[c], fours[4 + c], 0x44);
    eights[4 + c] = _mm512_shuffle_i32x4(fours[c], fours[4 + c], 0xee);
    eights[8 + c] = _mm512_shuffle_i32x4(fours[8 + c], fours[12 + c], 0x44);
    eights[12 + c] = _mm512_shuffle_i32x4(fours[8 + c], fours[12 + c], 0xee);
  }
  HWY_UNROLL(8)
  for (int c = 0; c < 4; ++c) {
    v[c] = _mm512_shuffle_i32x4(eights[c], eights[8 + c], 0x88);
    v[4 + c] = _mm512_shuffle_i32x4(eights[c], eights[8 + c], 0xdd);
    v[8 + c] = _mm512_shuffle_i32x4(eights[4 + c], eights[12 + c], 0x88);
    v[12 + c] = _mm512_shuffle_i32x4(eights[4 + c], eights[12 + c], 0xdd);
  }
}

// Lane i of row c: lane c of v[i], of four columns of a matrix (16, 16) in memory. Words come from
// there in fours, so half as many are moved between vectors as transpose() moves.
HWY_INLINE void transpose_columns(const float* v, __m512 (&rows)[4]) {
  __m512 lines[4];
  HWY_UNROLL(4)
  for (int i = 0; i < 4; ++i) {  // v[i], v[4 + i], v[8 + i], v[12 + i]
    const float* from = v + i * kLanes;
    lines[i] = _mm512_castps128_ps512(_mm_load_ps(from));
    lines[i] = _mm512_insertf32x4(lines[i], _mm_load_ps(from + 4 * kLanes), 1);
    lines[i] = _mm512_insertf32x4(lines[i], _mm_load_ps(from + 8 * kLanes), 2);
    lines[i] = _mm512_insertf32x4(lines[i], _mm_load_ps(from + 12 * kLanes), 3);
  }
  const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(lines[0], lines[1]));
  const __m512d b = _mm512_castps_pd(_mm512_unpacklo_ps(lines[2], lines[3]));
  const __m512d c = _mm512_castps_pd(_mm512_unpackhi_ps(lines[0], lines[1]));
  const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(lines[2], lines[3]));
  rows[0] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
  rows[1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
  rows[2] = _mm512_castpd_ps(_mm512_unpacklo_pd(c, d));
  rows[3] = _mm512_castpd_ps(_mm512_unpackhi_pd(c, d));
}

// Lane i: the sum of the lanes of v[i].
HWY_INLINE __m512i sums_of_lanes(const Vectors& v) {
  __m512i pairs[8], fours[4];
  HWY_UNROLL(8)
  for (int i = 0; i < 8; ++i) {  // of each 128 bits: v[2 i], v[2 i + 1], and again
    pairs[i] = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]),
                                _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
  }
  HWY_UNROLL(8)
  for (int i = 0; i < 4; ++i) {  // of each 128 bits: v[4 i] to v[4 i + 3]
    fours[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(pairs[2 * i], pairs[2 * i + 1]),
                                _mm512_unpackhi_epi64(pairs[2 * i], pairs[2 * i + 1]));
  }
  __m512i eights[2];
  HWY_UNROLL(8)
  for (int i = 0; i < 2; ++i) {  // 128 bits of v[8 i] to v[8 i + 3], again, the next four, again
    eights[i] = _mm512_add_epi32(_mm512_shuffle_i32x4(fours[2 * i], fours[2 * i + 1], 0x44),
                                 _mm512_shuffle_i32x4(fours[2 * i], fours[2 * i + 1], 0xee));
  }
  return _mm512_add_epi32(_mm512_shuffle_i32x4(eights[0], eights[1], 0x88),
                          _mm512_shuffle_i32x4(eights[0], eights[1], 0xdd));
}

}  // namespace recurve::cpu::avx512
