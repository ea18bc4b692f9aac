#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/rows/head_norm_gate.cuh"

namespace recurve::cuda::sm80 {
namespace {

// One block a head of a row.
__global__ void __launch_bounds__(kHeadNormThreads) head_norm_gate_kernel(HeadNormGateArgs args) {
  let_next_start();
  wait_for_previous();
  norm_and_gate(args, blockIdx.x / args.H, blockIdx.x % args.H);
}

}  // namespace

void run(const HeadNormGateArgs& args, Stream& stream) {
  if (args.rows == 0) return;
  launch_early(stream, "head_norm_gate", head_norm_gate_kernel,
               {.grid = static_cast<unsigned>(args.rows * args.H), .threads = kHeadNormThreads},
               args);
}

}  // namespace recurve::cuda::sm80
