#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/delta_gate.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

void norm_head(const DeltaGateArgs& a, float* x) {
  const bool length = a.norm == DeltaNorm::kLength;
  const float sum = sum_over(a.DK, [&](auto d, int64_t c) HWY_ATTR {
    const auto value = hn::LoadU(d, x + c);
    return length ? hn::Mul(value, value) : value;
  });
  const float divisor = length ? std::sqrt(sum + a.eps) : sum;
  for_lanes(a.DK, [&](auto d, int64_t c) HWY_ATTR {
    hn::StoreU(hn::Div(hn::LoadU(d, x + c), hn::Set(d, divisor)), d, x + c);
  });
}

void gate_decays(const DeltaGateArgs& a, int64_t row) {
  const float* in = a.a + row * a.a_stride;
  float* g = a.g + row * a.H * a.decays;
  if (a.decays == 1) {
    for_lanes(a.H, [&](auto d, int64_t h) HWY_ATTR {
      const auto x = hn::Add(hn::LoadU(d, in + h), hn::LoadU(d, a.dt_bias + h));
      hn::StoreU(hn::Mul(hn::LoadU(d, a.A + h), softplus(d, x)), d, g + h);
    });
    return;
  }
  for (int64_t head = 0; head < a.H; ++head) {
    const int64_t first = head * a.decays;
    for_lanes(a.decays, [&](auto d, int64_t c) HWY_ATTR {
      const auto x = hn::Add(hn::LoadU(d, in + first + c), hn::LoadU(d, a.dt_bias + first + c));
      hn::StoreU(hn::Mul(hn::Set(d, a.A[head]), softplus(d, x)), d, g + first + c);
    });
  }
}

void delta_gates(const DeltaGateArgs& a, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t head = 0; head < a.HK; ++head) {
      norm_head(a, a.q + row * a.qk_stride + head * a.DK);
      norm_head(a, a.k + row * a.qk_stride + head * a.DK);
    }
    for_lanes(a.H, [&](auto d, int64_t h) HWY_ATTR {
      auto beta = hn::Set(d, a.beta_scale);
      if (a.b != nullptr) {
        beta = hn::Mul(beta, sigmoid(d, hn::LoadU(d, a.b + row * a.b_stride + h)));
      }
      hn::StoreU(beta, d, a.beta + row * a.H + h);
    });
    if (a.decays > 0) gate_decays(a, row);
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(delta_gates);

void run(const DeltaGateArgs& args, Stream& stream) {
  const int64_t cost = 4 * int64_t{args.HK} * args.DK + 20 * int64_t{args.H} * (1 + args.decays);
  for_blocks(pool_of(stream), args.rows, cost, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(delta_gates)(args, begin, end);
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
