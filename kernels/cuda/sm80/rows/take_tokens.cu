#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 128;

// One thread a sequence.
__global__ void __launch_bounds__(kThreads) take_tokens_kernel(TakeTokensArgs args) {
  let_next_start();
  wait_for_previous();
  const int b = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (b >= args.num_seqs) return;
  const int32_t slot = args.planned[b];
  if (args.decodes[b] == 0) {
    args.slot[b] = slot;
    return;
  }
  const SampleProgress progress = args.progress[slot];
  args.slot[b] = progress.ended != 0 ? 0 : slot;
  args.tokens[args.begin[b]] = progress.ended != 0 ? 0 : progress.token;
}

}  // namespace

void run(const TakeTokensArgs& args, Stream& stream) {
  if (args.num_seqs == 0) return;
  const unsigned blocks = static_cast<unsigned>(ceil_div(args.num_seqs, kThreads));
  launch_early(stream, "take_tokens", take_tokens_kernel, {.grid = blocks, .threads = kThreads},
               args);
}

}  // namespace recurve::cuda::sm80
