#include "kernels/formats/int4.h"

#include "kernels/cpu/formats/table.h"
#include "kernels/cpu/linear.h"
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

  template <typename Use>
  HWY_INLINE static void read(const std::byte* data, const std::byte* scales, const Use& use) {
    const DotFloats floats;
    const hn::RebindToUnsigned<DotFloats> words;
    const hn::RebindToSigned<DotFloats> ints;
    const hn::Rebind<uint16_t, DotFloats> halves;
    uint32_t line;  // the scale's bits, then the minimum's
    std::memcpy(&line, scales, sizeof(line));
    const auto both = hn::Set(words, line);
    const auto scale = hn::BitCast(floats, hn::ShiftLeft<16>(both));
    const auto least = hn::BitCast(floats, hn::And(both, hn::Set(words, 0xffff0000u)));
    const auto* from = reinterpret_cast<const uint16_t*>(data);
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
    // The sixteen values that a column may have are a vector, from which its four bits pick one.
    static_assert(kDotLanes == kWords);
    const auto values = hn::MulAdd(hn::Iota(floats, 0), scale, least);
    const auto packed = hn::PromoteTo(words, hn::LoadU(halves, from));
    const auto pick = [&](auto index) HWY_ATTR {  // by the lowest four bits of each lane
      return DotVector{_mm512_permutexvar_ps(index.raw, values.raw)};
    };
    use(0, pick(packed));
    use(16, pick(hn::ShiftRight<4>(packed)));
    use(32, pick(hn::ShiftRight<8>(packed)));
    use(48, pick(hn::ShiftRight<12>(packed)));
#else
    const auto mask = hn::Set(words, 15u);
    const auto column = [&](int64_t k, auto packed) HWY_ATTR {
      const auto q = hn::ConvertTo(floats, hn::BitCast(ints, hn::And(packed, mask)));
      use(k, hn::MulAdd(q, scale, least));
    };
    const auto words_at = [&](int64_t word) HWY_ATTR {
      return hn::PromoteTo(words, hn::LoadU(halves, from + word));
    };
    for (int64_t word = 0; word < kWords; word += kDotLanes) column(word, words_at(word));
    for (int64_t word = 0; word < kWords; word += kDotLanes) {
      column(16 + word, hn::ShiftRight<4>(words_at(word)));
    }
    for (int64_t word = 0; word < kWords; word += kDotLanes) {
      column(32 + word, hn::ShiftRight<8>(words_at(word)));
    }
    for (int64_t word = 0; word < kWords; word += kDotLanes) {
      column(48 + word, hn::ShiftRight<12>(words_at(word)));
    }
#endif
  }
};

void int4_block(const LinearArgs& a, const std::byte*, int64_t row_begin, int64_t row_end,
                int64_t begin, int64_t end) {
  packed_block<Int4Groups>(a, row_begin, row_end, begin, end);
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(int4_block);

void run_int4(const LinearArgs& args, Stream& stream) {
  linear_with({.block = HWY_DYNAMIC_DISPATCH(int4_block)}, args, stream);
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
