#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/add.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

void add_range(const AddArgs& a, int64_t begin, int64_t end) {
  for_lanes(end - begin, [&](auto d, int64_t index) HWY_ATTR {
    const int64_t j = begin + index;
    hn::StoreU(hn::Add(hn::LoadU(d, a.a + j), hn::LoadU(d, a.b + j)), d, a.y + j);
  });
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(add_range);

void run(const AddArgs& args, Stream& stream) {
  for_blocks(pool_of(stream), args.count, 1, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(add_range)(args, begin, end);
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
