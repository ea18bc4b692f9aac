#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/recurrence/rg_lru.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/activation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// Channels [begin, end) of one sequence, row by row.
void rg_lru_channels(const RgLruArgs& a, int64_t seq, int64_t begin, int64_t end) {
  const int64_t first = a.seqs.begin[seq], last = a.seqs.begin[seq + 1];
  float* states = a.h + int64_t{a.seqs.slot[seq]} * a.D;
  for_lanes(end - begin, [&](auto d, int64_t index) HWY_ATTR {
    const int64_t channel = begin + index;
    const auto rate = hn::LoadU(d, a.rate + channel);
    auto h = hn::LoadU(d, states + channel);
    for (int64_t row = first; row < last; ++row) {
      const int64_t at = row * a.D + channel;
      const auto put = hn::Mul(sigmoid(d, hn::LoadU(d, a.i + at)), hn::LoadU(d, a.u + at));
      if (a.position[row] == 0) {
        h = put;
      } else {
        const auto log_a = hn::Mul(rate, sigmoid(d, hn::LoadU(d, a.r + at)));
        const auto kept = hn::Neg(hn::Expm1(d, hn::Add(log_a, log_a)));
        h = hn::MulAdd(exp(d, log_a), h, hn::Mul(hn::Sqrt(kept), put));
      }
      const auto branch = hn::LoadU(d, a.branch + row * a.branch_stride + channel);
      hn::StoreU(hn::Mul(activate<Activation::kGeluTanh>(d, branch), h), d, a.y + at);
    }
    hn::StoreU(h, d, states + channel);
  });
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(rg_lru_channels);

void run(const RgLruArgs& args, Stream& stream) {
  for_channels(pool_of(stream), args.seqs, args.D, 60,
               [&](int64_t seq, int64_t begin, int64_t end) {
                 HWY_DYNAMIC_DISPATCH(rg_lru_channels)(args, seq, begin, end);
               });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
