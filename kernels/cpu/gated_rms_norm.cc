#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gated_rms_norm.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// One group of one row: x, z, w, y (D); z and w may be null.
void norm_group(int64_t D, float eps, const float* x, const float* z, const float* w, float* y) {
  const float squares = sum_over(D, [&](auto d, int64_t j) HWY_ATTR {
    auto value = hn::LoadU(d, x + j);
    if (z != nullptr) value = hn::Mul(value, silu(d, hn::LoadU(d, z + j)));
    hn::StoreU(value, d, y + j);
    return hn::Mul(value, value);
  });
  const float scale = 1.0f / std::sqrt(squares / static_cast<float>(D) + eps);
  for_lanes(D, [&](auto d, int64_t j) HWY_ATTR {
    auto value = hn::Mul(hn::LoadU(d, y + j), hn::Set(d, scale));
    if (w != nullptr) value = hn::Mul(value, hn::LoadU(d, w + j));
    hn::StoreU(value, d, y + j);
  });
}

void gated_norm_rows(const GatedRmsNormArgs& a, int64_t begin, int64_t end) {
  const int64_t D = a.D / a.G;
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t at = 0; at < a.D; at += D) {
      norm_group(D, a.eps, a.x + r * a.x_stride + at,
                 a.z == nullptr ? nullptr : a.z + r * a.z_stride + at,
                 a.w == nullptr ? nullptr : a.w + at, a.y + r * a.y_stride + at);
    }
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(gated_norm_rows);

void run(const GatedRmsNormArgs& args, Stream& stream) {
  for_blocks(pool_of(stream), args.rows, 8 * int64_t{args.D}, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(gated_norm_rows)(args, begin, end);
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
