#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/token_shift.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// Channels [begin, end) of one sequence. The row before stays in a register.
void shift_channels(const TokenShiftArgs& a, int64_t seq, int64_t begin, int64_t end) {
  const int64_t D = a.D;
  float* state = a.state + a.seqs.slot[seq] * D;
  for_lanes(end - begin, [&](auto d, int64_t index) HWY_ATTR {
    const int64_t channel = begin + index;
    auto before = hn::LoadU(d, state + channel);
    for (int64_t row = a.seqs.begin[seq]; row < a.seqs.begin[seq + 1]; ++row) {
      const auto x = hn::LoadU(d, a.x + row * a.x_stride + channel);
      const auto change = hn::Sub(before, x);
      for (int i = 0; i < a.n; ++i) {
        const auto mixed = hn::MulAdd(change, hn::LoadU(d, a.mu[i] + channel), x);
        hn::StoreU(mixed, d, a.y[i] + row * D + channel);
      }
      before = x;
    }
    hn::StoreU(before, d, state + channel);
  });
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(shift_channels);

void run(const TokenShiftArgs& args, Stream& stream) {
  for_channels(pool_of(stream), args.seqs, args.D, 2 + args.n,
               [&](int64_t seq, int64_t begin, int64_t end) {
                 HWY_DYNAMIC_DISPATCH(shift_channels)(args, seq, begin, end);
               });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
