#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/rnn/rnn.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256;

// Blocks: sequences x pieces of kThreads channels.
__global__ void __launch_bounds__(kThreads) last_row_kernel(RnnArgs a, int pieces) {
  let_next_start();
  wait_for_previous();
  const int b = blockIdx.x / pieces;
  const int64_t D = static_cast<int64_t>(a.H) * a.DH;
  const int64_t d = static_cast<int64_t>(blockIdx.x % pieces) * kThreads + threadIdx.x;
  if (d >= D) return;
  const int64_t last = a.seqs.begin[b + 1] - 1;
  a.h[a.seqs.slot[b] * D + d] = a.y[last * D + d];
}

}  // namespace

void rnn_keep_last_rows(const RnnArgs& args, Stream& stream) {
  const int pieces = (args.H * args.DH + kThreads - 1) / kThreads;
  launch_early(stream, "rnn, last rows", last_row_kernel,
               {.grid = static_cast<unsigned>(args.seqs.num_seqs * pieces), .threads = kThreads},
               args, pieces);
}

}  // namespace recurve::cuda::sm80
