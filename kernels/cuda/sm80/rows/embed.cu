#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/linear/weight_rows.cuh"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256;

// One block a row.
template <typename Row>
__global__ void __launch_bounds__(kThreads) embed_kernel(EmbedArgs args) {
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x, D = args.E.K;
  const Row from(args.E, args.token[row]);
#pragma unroll 4
  for (int64_t d = threadIdx.x; d < D; d += kThreads) {
    args.x[row * D + d] = from[d];
  }
}

}  // namespace

void run(const EmbedArgs& args, Stream& stream) {
  if (args.rows == 0) return;
  with_rows(args.E, [&]<typename Row>() {
    launch_early(stream, "embed", embed_kernel<Row>,
                 {.grid = static_cast<unsigned>(args.rows), .threads = kThreads}, args);
  });
}

}  // namespace recurve::cuda::sm80
