#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/rows/activate.cuh"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256;

// Blocks: rows x pieces of kThreads of the width.
__global__ void __launch_bounds__(kThreads) hgrn_gate_kernel(HgrnGateArgs args, int pieces) {
  wait_for_previous();
  let_next_start();
  const int64_t row = blockIdx.x / pieces;
  const int d = static_cast<int>(blockIdx.x % pieces) * kThreads + static_cast<int>(threadIdx.x);
  if (d >= args.D) return;
  const float f = args.f[row * args.f_stride + d];
  const float b = args.bound == nullptr ? 0 : args.bound[d];
  const float k = (1 - b) * sigmoid(-f);
  float g;
  if (b == 0) {
    g = log_sigmoid(f);
  } else {
    g = f > 0 ? log1pf(-k) : logf(b + (1 - b) * sigmoid(f));
  }
  args.k[row * args.D + d] = k;
  args.g[row * args.D + d] = g;
}

}  // namespace

void run(const HgrnGateArgs& args, Stream& stream) {
  if (args.rows == 0) return;
  const int pieces = ceil_div(args.D, kThreads);
  launch_early(stream, "hgrn_gate", hgrn_gate_kernel,
               {.grid = static_cast<unsigned>(args.rows * pieces), .threads = kThreads}, args,
               pieces);
}

}  // namespace recurve::cuda::sm80
