#include "kernels/formats/int8.h"

#include "kernels/cpu/formats/table.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/formats/int8.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/formats/packed_linear-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

struct Int8Groups {
  static constexpr int64_t kColumns = kInt8Group, kBytes = kInt8Group, kScaleBytes = 2;
  static constexpr int kAbreast = 8, kMostRows = kTileRows, kRowsForPanels = kTileRows + 1;
  HWY_INLINE void open(const std::byte* data, const std::byte* scales) {
    q = reinterpret_cast<const int8_t*>(data);
    uint16_t upper;
    std::memcpy(&upper, scales, sizeof(upper));
    const hn::RebindToUnsigned<DotFloats> wide;
    scale = hn::BitCast(DotFloats(), hn::ShiftLeft<16>(hn::Set(wide, uint32_t{upper})));
  }
  HWY_INLINE DotVector vector(int64_t v) const {
    const DotFloats floats;
    const hn::RebindToSigned<DotFloats> ints;
    const hn::Rebind<int8_t, DotFloats> bytes;
    const auto whole = hn::PromoteTo(ints, hn::LoadU(bytes, q + v * kDotLanes));
    return hn::Mul(hn::ConvertTo(floats, whole), scale);
  }

  const int8_t* q;
  DotVector scale;
};

LinearProducts int8_linear_products(const LinearArgs& args) {
  return products_for<PackedWeights<Int8Groups>>(args);
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(int8_linear_products);

LinearProducts choose_int8(const LinearArgs& args) {
  return HWY_DYNAMIC_DISPATCH(int8_linear_products)(args);
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
