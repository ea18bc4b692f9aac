#include "kernels/formats/int4.h"

#include "kernels/cpu/formats/table.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/formats/int4.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/formats/packed_linear-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

struct Int4Groups {
  static constexpr int64_t kColumns = kInt4Group, kBytes = kInt4Group / 2, kScaleBytes = 4;
  static constexpr int64_t kWords = 16;  // of 16 bits: four columns each, 16 apart

  HWY_INLINE void set_scales(const std::byte* scales) {
    const hn::RebindToUnsigned<DotFloats> wide;
    uint32_t line;  // the scale's bits, then the minimum's
    std::memcpy(&line, scales, sizeof(line));
    const auto both = hn::Set(wide, line);
    scale = hn::BitCast(DotFloats(), hn::ShiftLeft<16>(both));
    least = hn::BitCast(DotFloats(), hn::And(both, hn::Set(wide, 0xffff0000u)));
  }

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  static constexpr int kAbreast = 8, kMostRows = 4, kRowsForPanels = 33;

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
  static constexpr int kAbreast = 2, kMostRows = kTileRows, kRowsForPanels = kTileRows + 1;

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

LinearProducts int4_linear_products(const LinearArgs& args) {
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
