#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 128;

// One block a sequence.
__global__ void __launch_bounds__(kThreads) positions_kernel(PositionsArgs args) {
  wait_for_previous();
  let_next_start();
  const int begin = args.seqs.begin[blockIdx.x], end = args.seqs.begin[blockIdx.x + 1];
  int32_t& count = args.count[args.seqs.slot[blockIdx.x]];
  const int32_t first = count;
  for (int row = begin + static_cast<int>(threadIdx.x); row < end; row += kThreads) {
    args.position[row] = first + row - begin;
  }
  __syncthreads();  // all have read the count
  if (threadIdx.x == 0) count = first + end - begin;
}

// Blocks: rows x pieces of kThreads pairs of a head. A thread turns its pair in every head.
__global__ void __launch_bounds__(kThreads) rotary_kernel(RotaryArgs args, int pieces) {
  wait_for_previous();
  let_next_start();
  const int64_t row = blockIdx.x / pieces;
  const int half = args.D / 2;
  const int64_t head_stride = args.head_stride > 0 ? args.head_stride : args.D;
  const int j = static_cast<int>(blockIdx.x % pieces) * kThreads + static_cast<int>(threadIdx.x);
  if (j >= half) return;
  const double angle = static_cast<double>(args.position[row]) * args.frequency[j];
  double sine, cosine;
  sincos(angle, &sine, &cosine);
  const float c = static_cast<float>(cosine), s = static_cast<float>(sine);
  float* x = args.x + row * args.stride + j;
#pragma unroll 4
  for (int head = 0; head < args.H; ++head) {
    float& a = x[head * head_stride];
    float& b = x[head * head_stride + half];
    const float old = a;
    a = old * c - b * s;
    b = old * s + b * c;
  }
}

}  // namespace

void run(const PositionsArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  launch_early(stream, "positions", positions_kernel,
               {.grid = static_cast<unsigned>(args.seqs.num_seqs), .threads = kThreads}, args);
}

void run(const RotaryArgs& args, Stream& stream) {
  if (args.rows == 0) return;
  const int pieces = ceil_div(args.D / 2, kThreads);
  launch_early(stream, "rotary", rotary_kernel,
               {.grid = static_cast<unsigned>(args.rows * pieces), .threads = kThreads}, args,
               pieces);
}

}  // namespace recurve::cuda::sm80
