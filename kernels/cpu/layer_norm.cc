#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/layer_norm.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// `size` values of row r from `first` on: one group.
void layer_norm_group(const LayerNormArgs& a, int64_t r, int64_t first, int64_t size) {
  const int64_t at = r * a.D + first;
  const float* x = a.x + at;
  if (a.sum != nullptr) {
    float* total = a.sum + at;
    for_lanes(size, [&](auto d, int64_t j) HWY_ATTR {
      hn::StoreU(hn::Add(hn::LoadU(d, total + j), hn::LoadU(d, x + j)), d, total + j);
    });
    x = total;
  }
  const float sum = sum_over(size, [&](auto d, int64_t j) HWY_ATTR { return hn::LoadU(d, x + j); });
  const float mean = sum / static_cast<float>(size);
  const float squares = sum_over(size, [&](auto d, int64_t j) HWY_ATTR {
    const auto centred = hn::Sub(hn::LoadU(d, x + j), hn::Set(d, mean));
    return hn::Mul(centred, centred);
  });
  const float scale = 1.0f / std::sqrt(squares / static_cast<float>(size) + a.eps);
  for_lanes(size, [&](auto d, int64_t j) HWY_ATTR {
    const auto centred = hn::Sub(hn::LoadU(d, x + j), hn::Set(d, mean));
    auto y = hn::Mul(hn::Mul(centred, hn::Set(d, scale)), hn::LoadU(d, a.w + first + j));
    if (a.b != nullptr) y = hn::Add(y, hn::LoadU(d, a.b + first + j));
    if (a.residual != nullptr) y = hn::Add(y, hn::LoadU(d, a.residual + at + j));
    hn::StoreU(y, d, a.y + at + j);
  });
}

void layer_norm_rows(const LayerNormArgs& a, int64_t begin, int64_t end) {
  const int64_t size = a.D / a.G;
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t first = 0; first < a.D; first += size) layer_norm_group(a, r, first, size);
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(layer_norm_rows);

void run(const LayerNormArgs& args, Stream& stream) {
  for_blocks(pool_of(stream), args.rows, 4 * int64_t{args.D}, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(layer_norm_rows)(args, begin, end);
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
