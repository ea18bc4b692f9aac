#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/head_rms_norm.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// One head of one row: x, gate, y (DV); gate may be null.
void rms_norm_head(const HeadRmsNormArgs& a, const float* x, const float* gate, float* y) {
  const float squares = sum_over(a.DV, [&](auto d, int64_t j) HWY_ATTR {
    const auto value = hn::LoadU(d, x + j);
    return hn::Mul(value, value);
  });
  const float scale = 1.0f / std::sqrt(squares / static_cast<float>(a.DV) + a.eps);
  for_lanes(a.DV, [&](auto d, int64_t j) HWY_ATTR {
    auto value = hn::Mul(hn::LoadU(d, x + j), hn::Set(d, scale));
    if (a.w != nullptr) value = hn::Mul(value, hn::LoadU(d, a.w + j));
    if (gate != nullptr) {
      const auto z = hn::LoadU(d, gate + j);
      value = hn::Mul(value, a.f == Activation::kSigmoid ? sigmoid(d, z) : silu(d, z));
    }
    hn::StoreU(value, d, y + j);
  });
}

void rms_norm_heads(const HeadRmsNormArgs& a, int64_t begin, int64_t end) {
  const int64_t DV = a.DV;
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t head = 0; head < a.H; ++head) {
      const float* gate = a.gate == nullptr ? nullptr : a.gate + r * a.gate_stride + head * DV;
      rms_norm_head(a, a.x + a.x_at(r, head), gate, a.y + (r * a.H + head) * DV);
    }
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(rms_norm_heads);

void run(const HeadRmsNormArgs& args, Stream& stream) {
  const int64_t cost = (args.gate == nullptr ? 2 : 8) * int64_t{args.H} * args.DV;
  for_blocks(pool_of(stream), args.rows, cost, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(rms_norm_heads)(args, begin, end);
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
