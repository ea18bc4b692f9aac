#include "kernels/cuda/sm80/linear/expert_linear.cuh"

namespace recurve::cuda::sm80 {
namespace expert {
namespace {

// Takes any matrix: a warp makes an output of each row of a part, its lanes side by side along K.
constexpr int kAnyRows = 8;
template <typename Row, bool kGates>
__global__ void __launch_bounds__(kThreads) any_kernel(ExpertLinearArgs a, Window window) {
  wait_for_previous();
  let_next_start();
  const Part part = part_of<kAnyRows>(a, static_cast<int>(blockIdx.x));
  const int warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
  const int j = static_cast<int>(blockIdx.y) * kWarps + warp;
  if (part.rows == 0 || j >= window.count) return;
  const int64_t K = a.W.K, n = static_cast<int64_t>(part.expert) * window.N + window.first + j;
  const Row W(a.W, n), up(a.W, kGates ? n + window.count : n);
  for (int row = 0; row < part.rows; ++row) {
    const float* x = row_at<kGates>(a, part.first + row);
    float sum = 0, up_sum = 0;
    for (int64_t k = lane; k < K; k += kWarpSize) {
      sum = fmaf(x[k], W[k], sum);
      if constexpr (kGates) up_sum = fmaf(x[k], up[k], up_sum);
    }
    sum = warp_sum(sum);
    up_sum = warp_sum(up_sum);
    if (lane == 0) finish<kGates>(a, window, part.first + row, j, sum, up_sum);
  }
}

}  // namespace

void run_any(const ExpertLinearArgs& a, const Window& window, Stream& stream) {
  const dim3 grid(most_parts(a, kAnyRows), static_cast<unsigned>(ceil_div(window.count, kWarps)));
  with_rows(a.W, [&]<typename Row>() {
    launch_early(stream, "expert_linear",
                 a.weight == nullptr ? any_kernel<Row, true> : any_kernel<Row, false>,
                 {.grid = grid, .threads = kThreads}, a, window);
  });
}

}  // namespace expert

void run(const ExpertLinearArgs& args, Stream& stream) {
  expert::run_windows(args, stream, [&](const expert::Window& window) {
    if (!experts_take_tiles(args.W)) return expert::run_any(args, window, stream);
    expert::with_weights(args.W, [&]<typename Weights>() {
      if (expert::has_few_rows(args)) {
        expert::launch_tiles<Weights, 1, 3>(args, window, stream);
      } else {
        expert::launch_tiles<Weights, 2, 3>(args, window, stream);
      }
    });
  });
}

}  // namespace recurve::cuda::sm80
