#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/head_norm_bonus.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// The N values from `at` on: those of one head, whose channels begin with `channel`.
void norm_head(const HeadNormBonusArgs& a, int64_t at, int64_t channel) {
  const float *o = a.o + at, *r = a.r + at, *k = a.k + at, *r_k = a.r_k + channel;
  const auto size = static_cast<float>(a.N);
  const float mean =
      sum_over(a.N, [&](auto d, int64_t c) HWY_ATTR { return hn::LoadU(d, o + c); }) / size;
  const float squares = sum_over(a.N, [&](auto d, int64_t c) HWY_ATTR {
    const auto centred = hn::Sub(hn::LoadU(d, o + c), hn::Set(d, mean));
    return hn::Mul(centred, centred);
  });
  const float bonus = sum_over(a.N, [&](auto d, int64_t c) HWY_ATTR {
    return hn::Mul(hn::Mul(hn::LoadU(d, r + c), hn::LoadU(d, k + c)), hn::LoadU(d, r_k + c));
  });
  const float scale = 1.0f / std::sqrt(squares / size + a.eps);
  for_lanes(a.N, [&](auto d, int64_t c) HWY_ATTR {
    const auto centred = hn::Sub(hn::LoadU(d, o + c), hn::Set(d, mean));
    auto y = hn::Mul(hn::Mul(centred, hn::Set(d, scale)), hn::LoadU(d, a.w + channel + c));
    y = hn::Add(y, hn::LoadU(d, a.b + channel + c));
    y = hn::MulAdd(hn::Set(d, bonus), hn::LoadU(d, a.v + at + c), y);
    hn::StoreU(hn::Mul(y, hn::LoadU(d, a.g + at + c)), d, a.y + at + c);
  });
}

void norm_heads(const HeadNormBonusArgs& a, int64_t begin, int64_t end) {
  for (int64_t head = begin; head < end; ++head) norm_head(a, head * a.N, head % a.H * a.N);
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(norm_heads);

void run(const HeadNormBonusArgs& args, Stream& stream) {
  const int64_t heads = int64_t{args.rows} * args.H, cost = 8 * int64_t{args.N};
  for_blocks(pool_of(stream), heads, cost, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(norm_heads)(args, begin, end);
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
