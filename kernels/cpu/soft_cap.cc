#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/soft_cap.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

void soft_cap_range(float* x, int64_t count, float cap) {
  for_lanes(count, [&](auto d, int64_t j) HWY_ATTR {
    const auto caps = hn::Set(d, cap);
    hn::StoreU(hn::Mul(caps, tanh(d, hn::Div(hn::LoadU(d, x + j), caps))), d, x + j);
  });
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(soft_cap_range);

namespace {
// Floats of a block: a whole number of vectors, so that each value is computed the same way however
// many threads there are.
constexpr int64_t kBlock = 1024;
}  // namespace

void run(const SoftCapArgs& args, Stream& stream) {
  const int64_t blocks = ceil_div(args.count, kBlock);
  for_blocks(pool_of(stream), blocks, 8 * kBlock, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kBlock, last = std::min(end * kBlock, args.count);
    HWY_DYNAMIC_DISPATCH(soft_cap_range)(args.x + first, last - first, args.cap);
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
