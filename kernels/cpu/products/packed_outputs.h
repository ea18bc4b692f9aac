// Weights in int8 and int4 as AVX-512 reads them, 16 outputs at a time. Included where
// HWY_PUSH_ATTRIBUTES has named these instructions, behind the standard headers.
#pragma once
#include <hwy/base.h>
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/ceil_div.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/products/avx512.h"
#include "kernels/formats/int4.h"
#include "kernels/formats/int8.h"
#include "kernels/tensor.h"

namespace recurve::cpu::avx512 {

inline constexpr int64_t kGroup = 64;  // columns
static_assert(kInt8Group == kGroup && kInt4Group == kGroup);

// What a format's groups have: bytes of values, and of scales, which are read for up to 16 groups
// of an output; of less, the rest are zeros. A minimum stands in the upper half of its word.
struct Int8Groups {
  static constexpr int64_t kBytes = kGroup, kScaleBytes = 2;
  static constexpr bool kMinimum = false;

  HWY_INLINE static void load_scales(const std::byte* from, int64_t groups, __m512i* scale,
                                     __m512i*) {
    const auto some = static_cast<__mmask16>((1u << groups) - 1);
    const __m256i bits = _mm256_maskz_loadu_epi16(some, from);
    *scale = _mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16);
  }
};
struct Int4Groups {
  static constexpr int64_t kBytes = kGroup / 2, kScaleBytes = 4;
  static constexpr bool kMinimum = true;

  // The q of a group: the lower halves of all bytes, then the upper ones.
  HWY_INLINE static __m512i load(const std::byte* group) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(group));
    const __m512i twice =
        _mm512_inserti64x4(_mm512_castsi256_si512(both), _mm256_srli_epi16(both, 4), 1);
    return _mm512_and_si512(twice, _mm512_set1_epi8(15));
  }
  HWY_INLINE static void load_scales(const std::byte* from, int64_t groups, __m512i* scale,
                                     __m512i* least) {
    const auto some = static_cast<__mmask16>((1u << groups) - 1);
    const __m512i both = _mm512_maskz_loadu_epi32(some, from);
    *scale = _mm512_slli_epi32(both, 16);
    *least = _mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
  }
};

// The weights of 16 outputs from n on; where they end, the last one again.
template <class Groups>
class PackedOutputs {
 public:
  PackedOutputs(const Matrix& W, int64_t n) {
    const int64_t groups = ceil_div(W.K, kGroup);
    for (int64_t i = 0; i < kLanes; ++i) {
      const int64_t first = std::min(n + i, W.N - 1) * groups;
      q_[i] = static_cast<const std::byte*>(W.data) + first * Groups::kBytes;
      scales_[i] = static_cast<const std::byte*>(W.scales) + first * Groups::kScaleBytes;
    }
  }

  HWY_INLINE const std::byte* group(int64_t i, int64_t g) const {
    return q_[i] + g * Groups::kBytes;
  }

  // scale[i]: those of group g + i, of `count` groups, 16 at most; least[i]: the minima.
  HWY_INLINE void load_scales(int64_t g, int64_t count, Vectors& scale, Vectors& least) const {
    HWY_UNROLL(16)
    for (int64_t i = 0; i < kLanes; ++i) {
      Groups::load_scales(scales_[i] + g * Groups::kScaleBytes, count, &scale[i], &least[i]);
    }
    transpose(scale);
    if constexpr (Groups::kMinimum) transpose(least);
  }

  // Of what follows these outputs' weights and scales, group g's share.
  HWY_INLINE void fetch_group(int64_t g) const {
    constexpr int64_t kShare = kLanes * Groups::kBytes, kScales = kLanes * Groups::kScaleBytes;
    fetch_lines<kShare / kLine>(q_[0] + g * kShare + FetchFar::kAhead);
    // A part of a line, or one.
    fetch_lines<1>(scales_[0] + g * kScales +
                   FetchFar::kAhead / Groups::kBytes * Groups::kScaleBytes);
  }

 private:
  const std::byte *q_[kLanes], *scales_[kLanes];
};

}  // namespace recurve::cpu::avx512
