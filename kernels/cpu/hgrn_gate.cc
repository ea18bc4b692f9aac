#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/hgrn_gate.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

void hgrn_gate_rows(const HgrnGateArgs& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float* forget = a.f + r * a.f_stride;
    float* g = a.g + r * a.D;
    float* k = a.k + r * a.D;
    for_lanes(a.D, [&](auto d, int64_t j) HWY_ATTR {
      const auto zero = hn::Zero(d);
      const auto f = hn::LoadU(d, forget + j);
      const auto bound = a.bound == nullptr ? zero : hn::LoadU(d, a.bound + j);
      const auto rest = hn::Sub(hn::Set(d, 1.0f), bound);
      const auto key = hn::Mul(rest, sigmoid(d, hn::Neg(f)));
      hn::StoreU(key, d, k + j);
      const auto near_one = hn::Log1p(d, hn::Neg(key));
      const auto small = hn::Log(d, hn::MulAdd(rest, sigmoid(d, f), bound));
      const auto bounded = hn::IfThenElse(hn::Gt(f, zero), near_one, small);
      const auto log_decay = hn::IfThenElse(hn::Eq(bound, zero), log_sigmoid(d, f), bounded);
      hn::StoreU(hn::IfThenElse(hn::IsNaN(key), key, log_decay), d, g + j);
    });
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(hgrn_gate_rows);

void run(const HgrnGateArgs& args, Stream& stream) {
  for_blocks(pool_of(stream), args.rows, 20 * int64_t{args.D}, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(hgrn_gate_rows)(args, begin, end);
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
