#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/recurrence/linear_recurrence.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// Channels [begin, end) of one sequence.
void recur(const LinearRecurrenceArgs& a, int64_t seq, int64_t begin, int64_t end) {
  const int64_t first = a.seqs.begin[seq], last = a.seqs.begin[seq + 1];
  float* states = a.state + int64_t{a.seqs.slot[seq]} * a.D;
  for_lanes(end - begin, [&](auto d, int64_t index) HWY_ATTR {
    const int64_t channel = begin + index;
    auto y = hn::LoadU(d, states + channel);
    for (int64_t row = first; row < last; ++row) {
      y = hn::MulAdd(hn::LoadU(d, a.c + row * a.c_stride + channel), y,
                     hn::LoadU(d, a.x + row * a.x_stride + channel));
      hn::StoreU(y, d, a.y + row * a.D + channel);
    }
    hn::StoreU(y, d, states + channel);
  });
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(recur);

void run(const LinearRecurrenceArgs& args, Stream& stream) {
  for_channels(pool_of(stream), args.seqs, args.D, 3, [&](int64_t seq, int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(recur)(args, seq, begin, end);
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
