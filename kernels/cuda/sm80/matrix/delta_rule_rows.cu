#include "kernels/cuda/sm80/matrix/delta_rule.h"
#include "kernels/cuda/sm80/matrix/delta_rule_launch.cuh"

namespace recurve::cuda::sm80 {

void delta_rule_rows(const DeltaRuleArgs& args, Stream& stream) {
  with_state_type(args.S.dtype, [&](auto element) {
    using T = decltype(element);
    if (args.DK <= NarrowDelta::kMostKeys) {
      launch_with<T, NarrowDelta::OfRows>(args, false, stream);
    } else if (args.DK <= MiddleDelta::kMostKeys) {
      launch_with<T, MiddleDelta::OfRows>(args, false, stream);
    } else {
      launch_with<T, WideDelta::OfRows>(args, false, stream);
    }
  });
}

}  // namespace recurve::cuda::sm80
