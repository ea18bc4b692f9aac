#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 128;

// A thread: a sequence.
__global__ void __launch_bounds__(kThreads) held_rows_kernel(HeldRowsArgs args) {
  let_next_start();
  wait_for_previous();
  const int sequence = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (sequence < args.seqs.num_seqs) count_held_rows(args, sequence);
}

}  // namespace

void run(const HeldRowsArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  launch_early(
      stream, "held_rows", held_rows_kernel,
      {.grid = static_cast<unsigned>(ceil_div(args.seqs.num_seqs, kThreads)), .threads = kThreads},
      args);
}

}  // namespace recurve::cuda::sm80
