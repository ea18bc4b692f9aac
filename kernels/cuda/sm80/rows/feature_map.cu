#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 128;

// The largest value of the block's threads, known to all; NaN is passed over.
__device__ float block_max(float value) {
  constexpr int kWarps = kThreads / kWarpSize;
  __shared__ float largest[kWarps];
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  if (threadIdx.x % kWarpSize == 0) largest[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  for (int warp = 0; warp < kWarps; ++warp) value = fmaxf(value, largest[warp]);
  return value;
}

// Value i of y before any sum is divided by; of kSoftmax the exponential, `largest` being |x|'s.
__device__ float mapped(const FeatureMapArgs& a, const float* x, int i, float largest) {
  const int D = a.D;
  const auto doubled = [&](int at) {  // [relu(x), relu(-x)]
    return at < D ? max_of(x[at], 0.0f) : max_of(-x[at - D], 0.0f);
  };
  switch (a.map) {
    case FeatureMap::kNone:
      return x[i];
    case FeatureMap::kSoftmax:
      return expf((i < D ? 2 * x[i] : -2 * x[i - D]) - 2 * largest);
    case FeatureMap::kProduct:
      return x[i] * x[D + i];
    case FeatureMap::kDpfp: {
      const int turn = i / (2 * D) + 1, at = i % (2 * D);
      return doubled(at) * doubled((at + 8 * D - turn) % (2 * D));
    }
  }
  return 0;
}

// A block: one head of a row. A thread writes and reads the same values of y. inputs, width: of x
// and y of a head.
__global__ void __launch_bounds__(kThreads)
    feature_map_kernel(FeatureMapArgs a, int inputs, int width) {
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x / a.H, head = blockIdx.x % a.H;
  const float* x = a.x + row * a.x_stride + head * inputs;
  float* y = a.y + (row * a.H + head) * width;
  const bool softmax = a.map == FeatureMap::kSoftmax;
  float largest = 0;
  if (softmax) {
    for (int d = threadIdx.x; d < a.D; d += kThreads) largest = fmaxf(largest, fabsf(x[d]));
    largest = block_max(largest);
  }
  float sum = 0;
  for (int i = threadIdx.x; i < width; i += kThreads) {
    y[i] = mapped(a, x, i, largest);
    sum += y[i];
  }
  const auto divide = [&](float by) {
    float quotients = 0;
    for (int i = threadIdx.x; i < width; i += kThreads) {
      y[i] /= by;
      quotients += y[i];
    }
    return quotients;
  };
  if (softmax) sum = divide(block_sum<kThreads>(sum));
  if (a.sum_eps != 0) divide(block_sum<kThreads>(sum) + a.sum_eps);
}

}  // namespace

void run(const FeatureMapArgs& args, Stream& stream) {
  if (args.rows == 0) return;
  const int inputs = args.map == FeatureMap::kProduct ? 2 * args.D : args.D;
  launch_early(stream, "feature_map", feature_map_kernel,
               {.grid = static_cast<unsigned>(args.rows * args.H), .threads = kThreads}, args,
               inputs, mapped_width(args.map) * args.D);
}

}  // namespace recurve::cuda::sm80
