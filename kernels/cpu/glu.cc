#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/glu.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/activation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

template <Activation F>
void glu_row(int64_t count, const float* gates, const float* ups, float* y) {
  for_lanes(count, [&](auto d, int64_t j) HWY_ATTR {
    const auto gate = activate<F>(d, hn::LoadU(d, gates + j));
    hn::StoreU(hn::Mul(gate, hn::LoadU(d, ups + j)), d, y + j);
  });
}

void glu_rows(const GluArgs& a, int64_t begin, int64_t end) {
  with_activation(a.f, [&](auto f) HWY_ATTR {
    for (int64_t r = begin; r < end; ++r) {
      const float* gates = a.gate_up + r * 2 * a.F;
      glu_row<decltype(f)::value>(a.F, gates, gates + a.F, a.y + r * a.F);
    }
  });
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(glu_rows);

void run(const GluArgs& args, Stream& stream) {
  for_blocks(pool_of(stream), args.rows, 6 * int64_t{args.F},
             [&](int64_t begin, int64_t end) { HWY_DYNAMIC_DISPATCH(glu_rows)(args, begin, end); });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
