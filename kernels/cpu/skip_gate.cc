#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/skip_gate.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

void skip_gate_rows(const SkipGateArgs& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* h = a.h + r * a.D;
    const float* x = a.x + r * a.x_stride;
    const float* z = a.z + r * a.z_stride;
    float* y = a.y + r * a.D;
    for_lanes(a.D, [&](auto d, int64_t j) HWY_ATTR {
      const auto skip = hn::LoadU(d, a.skip + j);
      const auto sum = hn::MulAdd(skip, hn::LoadU(d, x + j), hn::LoadU(d, h + j));
      hn::StoreU(hn::Mul(sum, silu(d, hn::LoadU(d, z + j))), d, y + j);
    });
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(skip_gate_rows);

void run(const SkipGateArgs& args, Stream& stream) {
  for_blocks(pool_of(stream), args.rows, 6 * int64_t{args.D}, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(skip_gate_rows)(args, begin, end);
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
