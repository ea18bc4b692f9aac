#include "kernels/ceil_div.h"
#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 128;
constexpr int kAhead = 8;  // rows whose inputs are on their way together

// One thread a channel of a sequence, row after row: so any cut gives the same bits. Blocks:
// sequences x pieces of kThreads channels.
__global__ void __launch_bounds__(kThreads)
    linear_recurrence_kernel(LinearRecurrenceArgs args, int pieces) {
  const int sequence = blockIdx.x / pieces;
  const int d = static_cast<int>(blockIdx.x % pieces) * kThreads + static_cast<int>(threadIdx.x);
  if (d >= args.D) return;
  const int64_t begin = args.seqs.begin[sequence], end = args.seqs.begin[sequence + 1];
  float& state = args.state[static_cast<int64_t>(args.seqs.slot[sequence]) * args.D + d];
  float y = state;
  for (int64_t first = begin; first < end; first += kAhead) {
    float c[kAhead], x[kAhead];
#pragma unroll
    for (int t = 0; t < kAhead; ++t) {
      if (first + t >= end) break;
      c[t] = args.c[(first + t) * args.c_stride + d];
      x[t] = args.x[(first + t) * args.x_stride + d];
    }
#pragma unroll
    for (int t = 0; t < kAhead; ++t) {
      if (first + t >= end) break;
      y = __fmaf_rn(c[t], y, x[t]);
      args.y[(first + t) * args.D + d] = y;
    }
  }
  state = y;
}

}  // namespace

void run(const LinearRecurrenceArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  const int pieces = ceil_div(args.D, kThreads);
  linear_recurrence_kernel<<<args.seqs.num_seqs * pieces, kThreads, 0, use(stream)>>>(args, pieces);
  expect_launched("linear_recurrence");
}

}  // namespace recurve::cuda::sm80
