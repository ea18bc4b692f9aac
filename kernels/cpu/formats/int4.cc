#include "kernels/formats/int4.h"

#include "kernels/cpu/formats/table.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/formats/int4.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/formats/packed_linear-inl.h"
#include "kernels/cpu/linear/transposed_block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

using Int4Lines = hn::Vec<hn::RebindToUnsigned<DotFloats>>;  // the scale's bits, then the minimum's
HWY_INLINE DotVector scale_of(Int4Lines lines) {
  return hn::BitCast(DotFloats(), hn::ShiftLeft<16>(lines));
}
HWY_INLINE DotVector least_of(Int4Lines lines) {
  const hn::RebindToUnsigned<DotFloats> wide;
  return hn::BitCast(DotFloats(), hn::And(lines, hn::Set(wide, 0xffff0000u)));
}

struct Int4Groups {
  static constexpr int64_t kColumns = kInt4Group, kBytes = kInt4Group / 2, kScaleBytes = 4;
  static constexpr int64_t kWords = 16;  // of 16 bits: four columns each, 16 apart

  HWY_INLINE void set_scales(const std::byte* scales) {
    const hn::RebindToUnsigned<DotFloats> wide;
    uint32_t line;
    std::memcpy(&line, scales, sizeof(line));
    scale = scale_of(hn::Set(wide, line));
    least = least_of(hn::Set(wide, line));
  }

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  static constexpr int kAbreast = 8, kMostRows = 4, kRowsForPanels = 33, kRowsForFarPanels = 33;

  // The sixteen values that a column may have are a vector, from which its four bits pick one.
  HWY_INLINE void open(const std::byte* data, const std::byte* scales) {
    static_assert(kDotLanes == kWords);
    const DotFloats floats;
    set_scales(scales);
    values = hn::MulAdd(hn::Iota(floats, 0), scale, least);
    words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(data)));
  }
  HWY_INLINE DotVector vector(int64_t v) const {  // by the lowest four bits of each lane
    const __m512i index = v == 0   ? words
                          : v == 1 ? _mm512_srli_epi32(words, 4)
                          : v == 2 ? _mm512_srli_epi32(words, 8)
                                   : _mm512_srli_epi32(words, 12);
    return DotVector{_mm512_permutexvar_ps(index, values.raw)};
  }

  DotVector values;
  __m512i words;
#else
  static constexpr int kAbreast = 2, kMostRows = kTileRows;
  static constexpr int kRowsForPanels = kTileRows + 1;
  static constexpr int kRowsForFarPanels = std::max(kRowsForPanels, 6);

  HWY_INLINE void open(const std::byte* data, const std::byte* scales) {
    words = reinterpret_cast<const uint16_t*>(data);
    set_scales(scales);
  }
  HWY_INLINE DotVector vector(int64_t v) const {
    const DotFloats floats;
    const hn::RebindToUnsigned<DotFloats> wide;
    const hn::RebindToSigned<DotFloats> ints;
    const hn::Rebind<uint16_t, DotFloats> halves;
    const int64_t column = v * kDotLanes;
    const auto loaded = hn::PromoteTo(wide, hn::LoadU(halves, words + column % kWords));
    const auto shifted = hn::ShiftRightSame(loaded, static_cast<int>(column / kWords * 4));
    const auto q = hn::ConvertTo(floats, hn::BitCast(ints, hn::And(shifted, hn::Set(wide, 15u))));
    return hn::MulAdd(q, scale, least);
  }

  const uint16_t* words;
#endif
  DotVector scale, least;
};

struct Int4Columns {
  static constexpr int64_t kGroup = kInt4Group, kStrip = kInt4Outputs;
  static constexpr int64_t kVectors = 2, kApart = kInt4Outputs / 2;
  static constexpr int64_t kOfLine = 2 * kLine;
  using Value = uint8_t;
  explicit Int4Columns(const Matrix& W)
      : data(static_cast<const uint8_t*>(W.data)),
        lines(static_cast<const uint32_t*>(W.scales)),
        N(W.N) {}

  const uint8_t* at(int64_t k, int64_t n) const { return data + (k * N + n) / 2; }
  static int64_t offset(int64_t n) { return n / kStrip * kApart + n % kStrip; }
  struct Scales {
    DotVector scale[kVectors], least[kVectors];
  };
  HWY_INLINE Scales scales(DotFloats, int64_t k, int64_t n) const {
    const hn::RebindToUnsigned<DotFloats> wide;
    const uint32_t* const from = lines + k / kGroup * N + n;
    Scales all;
    HWY_UNROLL(2)
    for (int64_t v = 0; v < kVectors; ++v) {
      const auto of_outputs = hn::LoadU(wide, from + v * kApart);
      all.scale[v] = scale_of(of_outputs);
      all.least[v] = least_of(of_outputs);
    }
    return all;
  }
  HWY_INLINE static void load(DotFloats floats, const uint8_t* from, const Scales& all,
                              DotVector* w) {
    const hn::RebindToUnsigned<DotFloats> wide;
    const hn::Rebind<uint8_t, DotFloats> bytes;
    const auto both = hn::PromoteTo(wide, hn::LoadU(bytes, from));
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86  // by the lowest four bits of each lane
    const __m512 values = hn::Iota(floats, 0).raw;
    const DotVector lower{_mm512_permutexvar_ps(both.raw, values)};
    const DotVector upper{_mm512_permutexvar_ps(hn::ShiftRight<4>(both).raw, values)};
#else
    const hn::RebindToSigned<DotFloats> ints;
    const auto q = [&](auto bits)
                       HWY_ATTR { return hn::ConvertTo(floats, hn::BitCast(ints, bits)); };
    const DotVector lower = q(hn::And(both, hn::Set(wide, 15u)));
    const DotVector upper = q(hn::ShiftRight<4>(both));
#endif
    w[0] = hn::MulAdd(lower, all.scale[0], all.least[0]);
    w[1] = hn::MulAdd(upper, all.scale[1], all.least[1]);
  }

  const uint8_t* data;
  const uint32_t* lines;
  int64_t N;
};

LinearProducts int4_linear_products(const LinearArgs& args) {
  if (args.W.transposed) return transposed_products_for<Int4Columns>(args);
  return products_for<PackedWeights<Int4Groups>>(args);
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(int4_linear_products);

LinearProducts choose_int4(const LinearArgs& args) {
  return HWY_DYNAMIC_DISPATCH(int4_linear_products)(args);
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
