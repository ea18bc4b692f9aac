#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/activation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

template <Activation F>
void map_row(const ActivationArgs& a, const float* x, float* y) {
  for_lanes(a.width, [&](auto d, int64_t j) HWY_ATTR {
    const auto value = hn::Mul(hn::Set(d, a.scale), activate<F>(d, hn::LoadU(d, x + j)));
    // NaN stays.
    const auto low = hn::Lt(value, hn::Set(d, a.floor));
    hn::StoreU(hn::IfThenElse(low, hn::Set(d, a.floor), value), d, y + j);
  });
}

void map_rows(const ActivationArgs& a, int64_t begin, int64_t end) {
  with_activation(a.f, [&](auto f) HWY_ATTR {
    for (int64_t r = begin; r < end; ++r) {
      map_row<decltype(f)::value>(a, a.x + r * a.x_stride, a.y + r * a.y_stride);
    }
  });
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(map_rows);

void run(const ActivationArgs& args, Stream& stream) {
  const int64_t cost = (args.f == Activation::kIdentity ? 1 : 6) * int64_t{args.width};
  for_blocks(pool_of(stream), args.rows, cost,
             [&](int64_t begin, int64_t end) { HWY_DYNAMIC_DISPATCH(map_rows)(args, begin, end); });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
