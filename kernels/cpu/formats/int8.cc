#include "kernels/formats/int8.h"

#include "kernels/cpu/formats/table.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/formats/int8.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/formats/packed_linear-inl.h"
#include "kernels/cpu/linear/transposed_block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

struct Int8Groups {
  static constexpr int64_t kColumns = kInt8Group, kBytes = kInt8Group, kScaleBytes = 2;
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  static constexpr int kAbreast = 8, kMostRows = 5, kRowsForPanels = 7, kRowsForFarPanels = 33;
#else
  static constexpr int kAbreast = 8, kMostRows = kTileRows;
  static constexpr int kRowsForPanels = kTileRows + 1, kRowsForFarPanels = 10;
#endif
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

struct Int8Columns {
  static constexpr int64_t kGroup = kInt8Group, kStrip = kDotLanes, kVectors = 1, kApart = 0;
  static constexpr int64_t kOfLine = kLine;
  using Value = int8_t;
  explicit Int8Columns(const Matrix& W)
      : data(static_cast<const int8_t*>(W.data)),
        group_scales(static_cast<const hwy::bfloat16_t*>(W.scales)),
        N(W.N) {}

  const int8_t* at(int64_t k, int64_t n) const { return data + k * N + n; }
  static int64_t offset(int64_t n) { return n; }
  template <class D>
  HWY_INLINE hn::Vec<D> scales(D d, int64_t k, int64_t n) const {
    return load_lanes(d, group_scales + k / kGroup * N + n);
  }
  template <class D>
  HWY_INLINE static void load(D d, const int8_t* from, const hn::Vec<D>& scale, hn::Vec<D>* w) {
    const hn::RebindToSigned<D> ints;
    const hn::Rebind<int8_t, D> bytes;
    *w = hn::Mul(hn::ConvertTo(d, hn::PromoteTo(ints, hn::LoadU(bytes, from))), scale);
  }

  const int8_t* data;
  const hwy::bfloat16_t* group_scales;
  int64_t N;
};

LinearProducts int8_linear_products(const LinearArgs& args) {
  if (args.W.transposed) return transposed_products_for<Int8Columns>(args);
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
