#include "kernels/cuda/sm80/delta_rule.h"
#include "kernels/cuda/sm80/delta_rule_launch.cuh"

namespace recurve::cuda::sm80 {
namespace {

// Whether rows are what is waited for: blocks would leave multiprocessors without work.
template <typename Shape>
bool waits_for_rows(const DeltaRuleArgs& a, Stream& stream) {
  const int blocks = a.seqs.num_seqs * a.H * ceil_div(a.DV, Shape::kColumns);
  return a.seqs.rows >= 8 * a.seqs.num_seqs &&
         blocks <= 2 * static_cast<CudaStream&>(stream).multiprocessors();
}

template <typename Shape>
void run_with(const DeltaRuleArgs& args, Stream& stream) {
  if (waits_for_rows<Shape>(args, stream)) return delta_rule_rows(args, stream);
  with_state_type(args.S.dtype,
                  [&](auto element) { launch_with<decltype(element), Shape>(args, stream); });
}

}  // namespace

void run(const DeltaRuleArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  static_assert(WideDelta::kMostKeys == kMostDeltaKeys);
  if (args.DK <= NarrowDelta::kMostKeys) return run_with<NarrowDelta>(args, stream);
  if (args.DK <= MiddleDelta::kMostKeys) return run_with<MiddleDelta>(args, stream);
  run_with<WideDelta>(args, stream);
}

}  // namespace recurve::cuda::sm80
