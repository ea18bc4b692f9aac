#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/swiglu.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

void swiglu_rows(const SwigluArgs& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* gates = a.gate_up + r * 2 * a.F;
    const float* ups = gates + a.F;
    float* y = a.y + r * a.F;
    for_lanes(a.F, [&](auto d, int64_t j) HWY_ATTR {
      const auto gate = hn::LoadU(d, gates + j);
      const auto silu = hn::Mul(gate, sigmoid(d, gate));
      hn::StoreU(hn::Mul(silu, hn::LoadU(d, ups + j)), d, y + j);
    });
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(swiglu_rows);

void swiglu(const SwigluArgs& args, Stream& stream) {
  for_blocks(pool_of(stream), args.rows, 6 * int64_t{args.F}, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(swiglu_rows)(args, begin, end);
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
