#include "kernels/formats/int8.h"

#include "kernels/cpu/formats/table.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/formats/int8.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/formats/packed_linear-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

HWY_INLINE float scale_at(const std::byte* bits) {
  uint16_t upper;
  std::memcpy(&upper, bits, sizeof(upper));
  const uint32_t whole = uint32_t{upper} << 16;
  float scale;
  std::memcpy(&scale, &whole, sizeof(scale));
  return scale;
}

struct Int8Groups {
  static constexpr int64_t kColumns = kInt8Group, kBytes = kInt8Group, kScaleBytes = 2;

  template <typename Use>
  HWY_INLINE static void read(const std::byte* data, const std::byte* scales, const Use& use) {
    const DotFloats floats;
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
    // Bits 8 to 15 of the fp32 value 2^15 count ones: with q + 128 there, which is q with its first
    // bit flipped, it is 2^15 + 128 + q, and s q is s times that less s (2^15 + 128), exactly.
    constexpr int kNone = 0x80808080;
    const auto place = [&](int byte) HWY_ATTR { return (kNone & ~0xff00) | byte << 8; };
    const __m512i places = _mm512_set_epi32(
        place(15), place(14), place(13), place(12), place(11), place(10), place(9), place(8),
        place(7), place(6), place(5), place(4), place(3), place(2), place(1), place(0));
    const auto scale = hn::Set(floats, scale_at(scales));
    const auto rest = hn::Mul(scale, hn::Set(floats, -32896.0f));
    HWY_UNROLL(4)
    for (int64_t k = 0; k < kColumns; k += kDotLanes) {
      const __m128i q = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + k));
      const __m512i spread = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(q), places);
      const __m512i bits = _mm512_xor_si512(spread, _mm512_set1_epi32(0x47008000));
      use(k, hn::MulAdd(DotVector{_mm512_castsi512_ps(bits)}, scale, rest));
    }
#else
    const hn::RebindToSigned<DotFloats> ints;
    const hn::Rebind<int8_t, DotFloats> bytes;
    const auto scale = hn::Set(floats, scale_at(scales));
    const auto* q = reinterpret_cast<const int8_t*>(data);
    HWY_UNROLL(4)
    for (int64_t k = 0; k < kColumns; k += kDotLanes) {
      const auto whole = hn::PromoteTo(ints, hn::LoadU(bytes, q + k));
      use(k, hn::Mul(hn::ConvertTo(floats, whole), scale));
    }
#endif
  }
};

void int8_block(const LinearArgs& a, const std::byte*, int64_t row_begin, int64_t row_end,
                int64_t begin, int64_t end) {
  packed_block<Int8Groups>(a, row_begin, row_end, begin, end);
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(int8_block);

void run_int8(const LinearArgs& args, Stream& stream) {
  linear_with({.block = HWY_DYNAMIC_DISPATCH(int8_block)}, args, stream);
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
