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
    const hn::RebindToSigned<DotFloats> ints;
    const hn::Rebind<int8_t, DotFloats> bytes;
    const auto scale = hn::Set(floats, scale_at(scales));
    const auto* q = reinterpret_cast<const int8_t*>(data);
    HWY_UNROLL(4)
    for (int64_t k = 0; k < kColumns; k += kDotLanes) {
      const auto whole = hn::PromoteTo(ints, hn::LoadU(bytes, q + k));
      use(k, hn::Mul(hn::ConvertTo(floats, whole), scale));
    }
  }
};

void int8_block(const LinearArgs& a, int64_t row_begin, int64_t row_end, int64_t begin,
                int64_t end) {
  packed_block<Int8Groups>(a, row_begin, row_end, begin, end);
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(int8_block);

void run_int8(const LinearArgs& args, Stream& stream) {
  linear_with(HWY_DYNAMIC_DISPATCH(int8_block), args, stream);
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
