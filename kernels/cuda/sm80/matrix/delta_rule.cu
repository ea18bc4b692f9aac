#include "kernels/cuda/sm80/matrix/delta_chunk.h"
#include "kernels/cuda/sm80/matrix/delta_rule.h"
#include "kernels/cuda/sm80/matrix/delta_rule_launch.cuh"

namespace recurve::cuda::sm80 {
namespace {

// Whether rows are what is waited for: blocks would leave multiprocessors without work.
template <typename Shape>
bool waits_for_rows(const DeltaRuleArgs& a, bool last_rows, Stream& stream) {
  const int blocks = a.seqs.num_seqs * a.H * ceil_div(a.DV, Shape::kColumns);
  return !last_rows && a.seqs.rows >= 8 * a.seqs.num_seqs &&
         blocks <= 2 * static_cast<CudaStream&>(stream).multiprocessors();
}

template <typename Shape>
void run_steps(const DeltaRuleArgs& args, bool last_rows, Stream& stream) {
  if (waits_for_rows<Shape>(args, last_rows, stream)) return delta_rule_rows(args, stream);
  with_state_type(args.S.dtype, [&](auto element) {
    launch_with<decltype(element), Shape>(args, last_rows, stream);
  });
}

void run_steps(const DeltaRuleArgs& args, bool last_rows, Stream& stream) {
  static_assert(WideDelta::kMostKeys == kMostDeltaKeys);
  if (args.DK <= NarrowDelta::kMostKeys) return run_steps<NarrowDelta>(args, last_rows, stream);
  if (args.DK <= MiddleDelta::kMostKeys) return run_steps<MiddleDelta>(args, last_rows, stream);
  run_steps<WideDelta>(args, last_rows, stream);
}

}  // namespace

void run(const DeltaRuleArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  const bool chunks =
      args.seqs.max_len > 1 && takes_delta_chunks(args, most_shared_memory("delta_rule"));
  if (chunks) delta_rule_chunks(args, stream);
  run_steps(args, chunks, stream);
}

void delta_rule_last_rows(const DeltaRuleArgs& args, Stream& stream) {
  run_steps(args, true, stream);
}

}  // namespace recurve::cuda::sm80
