#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rms_norm.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

void norm_rows(const RmsNormArgs& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* x = a.x + r * a.D;
    float* y = a.y + r * a.D;
    const float squares = sum_over(a.D, [&](auto d, int64_t j) HWY_ATTR {
      const auto value = hn::LoadU(d, x + j);
      return hn::Mul(value, value);
    });
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(a.D) + a.eps);
    for_lanes(a.D, [&](auto d, int64_t j) HWY_ATTR {
      const auto scaled = hn::Mul(hn::LoadU(d, x + j), hn::Set(d, scale));
      hn::StoreU(hn::Mul(scaled, hn::LoadU(d, a.w + j)), d, y + j);
    });
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(norm_rows);

void run(const RmsNormArgs& args, Stream& stream) {
  for_blocks(pool_of(stream), args.rows, 2 * int64_t{args.D}, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(norm_rows)(args, begin, end);
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
