// What products on AMX share. Included where HWY_PUSH_ATTRIBUTES has named AVX-512 and AMX, behind
// the standard headers, whose functions are for every machine.
//
// A value of x in fp32 is the sum of three in bf16, exactly: its upper 8 bits, those of what is
// left, and the last 8. So three products of bf16, which are exact, are one of fp32. One
// instruction multiplies 16 outputs' weights of 32 columns with the same columns of up to 16 rows;
// it adds the products of the even columns and those of the odd ones by themselves in their order,
// and both to the sum (TDPBF16PS in Intel's manual). What is subnormal counts as zero.
#pragma once
#include <cpuid.h>
#include <hwy/base.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cpu/products/avx512.h"
#include "kernels/ops/linear.h"
#include "kernels/weight_format.h"

namespace recurve::cpu::amx {

using avx512::kLanes;
using avx512::Vectors;

inline constexpr int64_t kColumns = 32;  // of a tile of weights
inline constexpr int64_t kOutputs = 16;  // of a tile of weights
inline constexpr int64_t kRows = 16;     // of x that lie together
inline constexpr int64_t kPairs = kColumns / 2;
inline constexpr int64_t kPairBytes = 4;

// The upper halves of the 32 words of a, then b.
HWY_INLINE __m512i upper_halves(__m512i a, __m512i b) {
  alignas(64) static constexpr auto kOdd = [] {
    std::array<uint16_t, 32> odd = {};
    for (uint16_t i = 0; i < 32; ++i) odd[i] = static_cast<uint16_t>(2 * i + 1);
    return odd;
  }();
  return _mm512_permutex2var_epi16(a, _mm512_load_si512(kOdd.data()), b);
}

inline constexpr int kNotFinite = 0x99;  // classes: NaN of both kinds, infinity of both signs

// 16 values as the sum of so many in bf16, each in the upper half of a word.
template <int PARTS>
struct Parts {
  static_assert(PARTS == 1 || PARTS == 3);
  HWY_INLINE explicit Parts(__m512 x) {
    const __m512i halves = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    const __m512i bits = _mm512_castps_si512(x);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    if constexpr (PARTS == 1) {  // to nearest, ties to even
      const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
      const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
      of[0] = _mm512_mask_or_epi32(_mm512_add_epi32(bits, half), nan, bits, halves);
    } else {  // what is not finite is the upper one alone
      const __mmask16 finite = _knot_mask16(_mm512_fpclass_ps_mask(x, kNotFinite));
      of[0] = _mm512_mask_or_epi32(_mm512_and_si512(bits, halves), nan, bits, halves);
      const __m512 rest = _mm512_maskz_sub_ps(finite, x, _mm512_castsi512_ps(of[0]));
      of[1] = _mm512_and_si512(_mm512_castps_si512(rest), halves);
      of[2] = _mm512_castps_si512(_mm512_sub_ps(rest, _mm512_castsi512_ps(of[1])));
    }
  }
  __m512i of[PARTS];
};

HWY_INLINE __m512 load(const float* from, int64_t count) {
  const auto some = static_cast<__mmask16>((1u << std::clamp<int64_t>(count, 0, kLanes)) - 1);
  return _mm512_maskz_loadu_ps(some, from);
}

// The instructions by the number of their registers, of which g++ 12 wants the digits themselves in
// its intrinsics.
template <int TILE>
HWY_INLINE void load_tile(const void* from, int64_t row_stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0"
               :
               : "i"(TILE), "r"(from), "r"(row_stride)
               : "memory");
}
template <int TILE>
HWY_INLINE void store_tile(void* to, int64_t row_stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(TILE), "r"(to), "r"(row_stride) : "memory");
}
template <int TILE>
HWY_INLINE void clear_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(TILE));
}
template <int SUMS, int W, int X>
HWY_INLINE void add_products() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(W), "i"(X));
}

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0;
  std::array<uint8_t, 14> reserved = {};
  std::array<uint16_t, 16> row_bytes = {};
  std::array<uint8_t, 16> rows = {};

  void set(int tile, int64_t tile_rows, int64_t tile_columns) {
    if (tile_rows == 0 || tile_columns == 0) return;
    rows[tile] = static_cast<uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<uint16_t>(tile_columns * kPairBytes);
  }
  void use() const { asm volatile("ldtilecfg %0" : : "m"(*this)); }
};
static_assert(sizeof(TileConfig) == 64);
HWY_INLINE void release_tiles() { asm volatile("tilerelease"); }

inline bool any_nan(const float* values, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const __m512 some = load(values + i, count - i);
    if (_mm512_cmp_ps_mask(some, some, _CMP_UNORD_Q) != 0) return true;
  }
  return false;
}

// Of a row of x without NaN, sums of the outputs from n on that are not finite, made of the whole
// values: a part of x that is zero makes NaN of a weight that is infinite, and so does an infinite
// x of what stands for a weight and is zero.
inline __m512 without_parts(const LinearArgs& a, int64_t row, int64_t n, __mmask16 which,
                            __m512 sums) {
  const float* x = a.x + row * a.W.K;
  if (any_nan(x, a.W.K)) return sums;
  std::vector<float> w(static_cast<size_t>(a.W.K));
  alignas(64) float values[kLanes];
  _mm512_store_ps(values, sums);
  for (int64_t j = 0; j < kLanes; ++j) {
    if ((which >> j & 1) == 0) continue;
    unpack_row(a.W, n + j, w.data());
    values[j] = 0;
    for (int64_t k = 0; k < a.W.K; ++k) values[j] += x[k] * w[k];
  }
  return _mm512_load_ps(values);
}

// The sums of the outputs of a tile from n on, of one row, with bias and residual into y.
HWY_INLINE void finish_row(const LinearArgs& a, int64_t row, int64_t n, __m512 sum) {
  const int64_t at = row * a.W.N + n;
  if (a.bias != nullptr) sum = _mm512_add_ps(sum, _mm512_loadu_ps(a.bias + n));
  if (a.residual != nullptr) sum = _mm512_add_ps(sum, _mm512_loadu_ps(a.residual + at));
  _mm512_storeu_ps(a.y + at, sum);
}

// The sums of `outputs` outputs from n on, of one row, with bias and residual into y. SPLIT: x was
// several numbers, whose sums may not be finite where those of x are.
template <bool SPLIT>
HWY_INLINE void finish_row(const LinearArgs& a, int64_t row, int64_t n, int64_t outputs,
                           __m512 sum) {
  const auto some = static_cast<__mmask16>((1u << outputs) - 1);
  const int64_t at = row * a.W.N + n;
  const __mmask16 bad = _mm512_mask_cmp_ps_mask(
      some, _mm512_abs_ps(sum), _mm512_set1_ps(std::numeric_limits<float>::max()), _CMP_NLE_UQ);
  if (SPLIT && bad != 0) sum = without_parts(a, row, n, bad, sum);
  if (a.bias != nullptr) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(some, a.bias + n));
  if (a.residual != nullptr) {
    sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(some, a.residual + at));
  }
  _mm512_mask_storeu_ps(a.y + at, some, sum);
}

// Whether the processor has the instructions, for bf16 and for bytes, and the system lets this
// process use the registers.
inline bool ask_for_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
  constexpr unsigned kAll = kBf16 | kTile | kInt8;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kAll) != kAll) return false;
  constexpr long kAskForState = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
}

inline bool has_amx() {
  static const bool there = ask_for_amx();
  return there;
}

}  // namespace recurve::cpu::amx
