#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/head_norm_gate.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// One head of one row: h, o, w, y (DV).
void norm_head(int DV, float eps, const float* h, const float* o, const float* w, float* y) {
  const float sum = sum_over(DV, [&](auto d, int64_t j) HWY_ATTR { return hn::LoadU(d, h + j); });
  const float mean = sum / static_cast<float>(DV);
  const float squares = sum_over(DV, [&](auto d, int64_t j) HWY_ATTR {
    const auto centred = hn::Sub(hn::LoadU(d, h + j), hn::Set(d, mean));
    return hn::Mul(centred, centred);
  });
  const float scale = 1.0f / std::sqrt(squares / static_cast<float>(DV) + eps);
  for_lanes(DV, [&](auto d, int64_t j) HWY_ATTR {
    const auto centred = hn::Sub(hn::LoadU(d, h + j), hn::Set(d, mean));
    const auto normed = hn::Mul(hn::Mul(centred, hn::Set(d, scale)), hn::LoadU(d, w + j));
    hn::StoreU(hn::Mul(sigmoid(d, hn::LoadU(d, o + j)), normed), d, y + j);
  });
}

void norm_gate_rows(const HeadNormGateArgs& a, int64_t begin, int64_t end) {
  const int64_t DV = a.DV;
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t head = 0; head < a.H; ++head) {
      const int64_t at = (r * a.H + head) * DV;
      norm_head(a.DV, a.eps, a.h + at, a.o + r * a.o_stride + head * DV, a.w + head * DV, a.y + at);
    }
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(norm_gate_rows);

void run(const HeadNormGateArgs& args, Stream& stream) {
  const int64_t cost = 8 * int64_t{args.H} * args.DV;
  for_blocks(pool_of(stream), args.rows, cost, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(norm_gate_rows)(args, begin, end);
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
