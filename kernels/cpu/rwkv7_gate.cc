#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rwkv7_gate.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// The N values from `at` on: those of one head, whose channels begin with `channel`.
void gate_head(const Rwkv7GateArgs& a, int64_t at, int64_t channel) {
  float *w = a.w + at, *alphas = a.a + at, *k = a.k + at, *v = a.v + at, *kk = a.kk + at;
  const float squares = sum_over(a.N, [&](auto d, int64_t c) HWY_ATTR {
    const auto key = hn::Mul(hn::LoadU(d, k + c), hn::LoadU(d, a.k_k + channel + c));
    return hn::Mul(key, key);
  });
  const float found = std::sqrt(squares);
  const float length = found < 1e-12f ? 1e-12f : found;  // NaN stays
  for_lanes(a.N, [&](auto d, int64_t c) HWY_ATTR {
    const auto one = hn::Set(d, 1.0f);
    const auto key = hn::LoadU(d, k + c);
    const auto replaced = hn::Mul(key, hn::LoadU(d, a.k_k + channel + c));
    hn::StoreU(hn::Div(replaced, hn::Set(d, length)), d, kk + c);
    const auto fastest = hn::Set(d, -0.60653066f);  // -exp(-1/2)
    hn::StoreU(hn::Mul(fastest, sigmoid(d, hn::LoadU(d, w + c))), d, w + c);
    const auto alpha = sigmoid(d, hn::LoadU(d, alphas + c));
    hn::StoreU(alpha, d, alphas + c);
    const auto k_a = hn::LoadU(d, a.k_a + channel + c);
    hn::StoreU(hn::Mul(key, hn::MulAdd(hn::Sub(alpha, one), k_a, one)), d, k + c);
    if (a.m == nullptr) return;
    const auto value = hn::LoadU(d, v + c);
    const auto change = hn::Sub(hn::LoadU(d, a.v_first + at + c), value);
    hn::StoreU(hn::MulAdd(change, sigmoid(d, hn::LoadU(d, a.m + at + c)), value), d, v + c);
  });
}

void gate_heads(const Rwkv7GateArgs& a, int64_t begin, int64_t end) {
  for (int64_t head = begin; head < end; ++head) gate_head(a, head * a.N, head % a.H * a.N);
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(gate_heads);

void run(const Rwkv7GateArgs& args, Stream& stream) {
  const int64_t heads = int64_t{args.rows} * args.H, cost = 20 * int64_t{args.N};
  for_blocks(pool_of(stream), heads, cost, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(gate_heads)(args, begin, end);
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
