#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"
#include "kernels/weight_format.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/embed.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

void embed_rows(const EmbedArgs& a, int64_t begin, int64_t end) {
  const int64_t D = a.E.K;
  for (int64_t r = begin; r < end; ++r) {
    const auto* row = static_cast<const hwy::bfloat16_t*>(a.E.data) + a.token[r] * D;
    float* x = a.x + r * D;
    for_lanes(D, [&](auto d, int64_t j) HWY_ATTR {
      const hn::Rebind<hwy::bfloat16_t, decltype(d)> narrow;
      hn::StoreU(hn::PromoteTo(d, hn::LoadU(narrow, row + j)), d, x + j);
    });
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(embed_rows);

void run(const EmbedArgs& args, Stream& stream) {
  const int64_t D = args.E.K;
  for_blocks(pool_of(stream), args.rows, D, [&](int64_t begin, int64_t end) {
    if (args.E.dtype == DType::kBF16) {
      HWY_DYNAMIC_DISPATCH(embed_rows)(args, begin, end);
      return;
    }
    for (int64_t r = begin; r < end; ++r) unpack_row(args.E, args.token[r], args.x + r * D);
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
