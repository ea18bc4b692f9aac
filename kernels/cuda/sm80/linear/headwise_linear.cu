#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/capabilities.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/split_bf16.cuh"
#include "kernels/cuda/sm80/vector.cuh"

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

// On the tensor cores: a warp kM times 16 outputs of kR times 8 rows. How many it has of each is no
// part of what a row gives. kVector: rows of x begin at multiples of 16 bytes.
template <int kM, int kR, bool kVector>
__global__ void __launch_bounds__(kThreads) tiles_kernel(HeadwiseLinearArgs args, int row_blocks) {
  let_next_start();
  wait_for_previous();
  const int64_t K = args.W.K, N = args.W.N / args.H;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int64_t tile =
      (static_cast<int64_t>(blockIdx.x / row_blocks) * blockDim.x + threadIdx.x) / kWarpSize;
  const int64_t n = tile * kM * kTileN, first = blockIdx.x % row_blocks * int64_t{kR * kTileRows};
  if (n >= args.W.N) return;
  const auto* W = static_cast<const uint16_t*>(args.W.data) + (n + lane / 4) * K + lane % 4 * 8;
  const float* x = args.x + n / N * K + lane % 4 * 8;
  const float* x_of[kR];
#pragma unroll
  for (int r = 0; r < kR; ++r) {
    const int64_t row = first + r * kTileRows + lane / 4;
    x_of[r] = x + min(row, static_cast<int64_t>(args.rows) - 1) * args.x_stride;
  }
  Accumulator<kM, kR> sums;
#pragma unroll(kR == 1 ? 8 : 2)
  for (int64_t k = 0; k < K; k += kSlab) {
    uint4 w[2 * kM];
#pragma unroll
    for (int m = 0; m < 2 * kM; ++m) w[m] = *reinterpret_cast<const uint4*>(W + m * 8 * K + k);
#pragma unroll
    for (int r = 0; r < kR; ++r) {
      sums.add(w, r, split(load4<kVector>(x_of[r] + k, 4), load4<kVector>(x_of[r] + k + 4, 4)));
    }
  }
  sums.for_each([&](int output, int row_of_tile, float sum) {
    const int64_t row = first + row_of_tile;
    if (row >= args.rows) return;
    const int64_t at = n + output;
    args.y[row * args.y_stride + at] = args.bias == nullptr ? sum : sum + args.bias[at];
  });
}

// One row tile leaves few warps, which are to stand on as many multiprocessors.
template <int kM, int kR>
void launch_tiles(const HeadwiseLinearArgs& args, Stream& stream) {
  const bool vectors = aligned(args.x) && args.x_stride % 4 == 0;
  const int row_blocks = ceil_div(args.rows, kR * kTileRows);
  constexpr int kWarpsOfBlock = kR == 1 ? 1 : kWarps;
  const auto blocks = ceil_div(args.W.N, int64_t{kM * kTileN * kWarpsOfBlock}) * row_blocks;
  launch_early(stream, "headwise_linear",
               vectors ? tiles_kernel<kM, kR, true> : tiles_kernel<kM, kR, false>,
               {.grid = static_cast<unsigned>(blocks), .threads = kWarpsOfBlock * kWarpSize}, args,
               row_blocks);
}

// Matrices in bf16 that fill tiles of the tensor cores.
bool fills_tiles(const HeadwiseLinearArgs& args) {
  return args.W.dtype == DType::kBF16 && args.W.K % kSlab == 0 &&
         args.W.N / args.H % (2 * kTileN) == 0 && aligned(args.W.data);
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
  if (fills_tiles(args)) {
    return args.rows <= kTileRows ? launch_tiles<1, 1>(args, stream)
                                  : launch_tiles<2, 4>(args, stream);
  }
  if (args.W.dtype == DType::kBF16) {
    launch<uint16_t>(args, stream);
  } else {
    launch<float>(args, stream);
  }
}

}  // namespace recurve::cuda::sm80
