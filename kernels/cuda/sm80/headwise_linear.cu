#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kSmall = 16;  // the longest K that one thread takes
constexpr int kRows = 4;    // of x, a warp

__device__ float weight_at(const float* W, int64_t index) { return W[index]; }
__device__ float weight_at(const uint16_t* W, int64_t index) { return widen_bf16(W[index]); }

// One thread an output. Blocks: rows x pieces of kThreads of the outputs.
template <typename Weight>
__global__ void __launch_bounds__(kThreads) small_kernel(HeadwiseLinearArgs args, int pieces) {
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x / pieces, K = args.W.K, N = args.W.N / args.H;
  const int64_t n = static_cast<int64_t>(blockIdx.x % pieces) * kThreads + threadIdx.x;
  if (n >= args.W.N) return;
  const Weight* W = static_cast<const Weight*>(args.W.data) + n * K;
  const float* x = args.x + row * args.x_stride + n / N * K;
  float sum = 0;
  for (int64_t k = 0; k < K; ++k) sum = fmaf(weight_at(W, k), x[k], sum);
  args.y[row * args.y_stride + n] = args.bias == nullptr ? sum : sum + args.bias[n];
}

// One warp an output, its lanes side by side along K; each row of x is summed for itself.
template <typename Weight>
__global__ void __launch_bounds__(kThreads) large_kernel(HeadwiseLinearArgs args, int row_blocks) {
  let_next_start();
  wait_for_previous();
  const int lane = threadIdx.x % kWarpSize;
  const int64_t n =
      static_cast<int64_t>(blockIdx.x / row_blocks) * kWarps + threadIdx.x / kWarpSize;
  const int64_t first = static_cast<int64_t>(blockIdx.x % row_blocks) * kRows;
  const int64_t K = args.W.K, N = args.W.N / args.H;
  if (n >= args.W.N) return;
  const int rows = min(kRows, args.rows - static_cast<int>(first));
  const Weight* W = static_cast<const Weight*>(args.W.data) + n * K;
  const float* x = args.x + first * args.x_stride + n / N * K;
  float sum[kRows] = {};
  for (int64_t k = lane; k < K; k += kWarpSize) {
    const float w = weight_at(W, k);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < rows) sum[r] = fmaf(w, x[static_cast<int64_t>(r) * args.x_stride + k], sum[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float y = warp_sum(sum[r]);
    if (lane == 0 && r < rows) {
      args.y[(first + r) * args.y_stride + n] = args.bias == nullptr ? y : y + args.bias[n];
    }
  }
}

template <typename Weight>
void launch(const HeadwiseLinearArgs& args, Stream& stream) {
  const int64_t N = args.W.N;
  if (args.W.K <= kSmall) {
    const int pieces = ceil_div(N, kThreads);
    return launch_early(stream, "headwise_linear", small_kernel<Weight>,
                        {.grid = static_cast<unsigned>(args.rows * pieces), .threads = kThreads},
                        args, pieces);
  }
  const int row_blocks = ceil_div(args.rows, kRows);
  const auto blocks = static_cast<unsigned>(ceil_div(N, kWarps) * row_blocks);
  launch_early(stream, "headwise_linear", large_kernel<Weight>,
               {.grid = blocks, .threads = kThreads}, args, row_blocks);
}

}  // namespace

// Which kernel takes a matrix depends on the matrix alone, never on the rows.
void run(const HeadwiseLinearArgs& args, Stream& stream) {
  if (args.rows == 0 || args.W.N == 0) return;
  if (args.W.dtype == DType::kBF16) {
    launch<uint16_t>(args, stream);
  } else {
    launch<float>(args, stream);
  }
}

}  // namespace recurve::cuda::sm80
