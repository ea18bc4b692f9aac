// The router: a warp chooses the experts of a row, then a block for each expert lists its pairs.
#include <cstdint>

#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/rows/router.h"

namespace recurve::cuda::sm80 {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr float kClosed = NAN;  // of a value that cannot be chosen any more

// Any value but NaN, which would be closed.
__device__ float open_value(float value) { return isnan(value) ? -INFINITY : value; }

// Numbers in the order of the values, for integer comparisons; 0 is less than that of any value.
__device__ uint32_t ordered(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0f);  // -0 is 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The number of the largest of the open values, the first of equal ones, to all lanes; at least one
// is open.
__device__ int largest(const float* values, int count) {
  uint32_t best = 0;
  int at = count;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kWarpSize) {
    const float value = values[i];
    if (isnan(value) || ordered(value) <= best) continue;
    best = ordered(value);
    at = i;
  }
  const uint32_t most = __reduce_max_sync(kAll, best);
  return static_cast<int>(
      __reduce_min_sync(kAll, static_cast<unsigned>(best == most ? at : count)));
}

// s, and what experts are chosen by: c.
__device__ void score(const RouterArgs& a, const float* logits, float* s, float* c) {
  const int lane = static_cast<int>(threadIdx.x);
  float most = -INFINITY, sum = 0;
  const bool softmax = a.scores == RouterScores::kSoftmax;
  if (softmax) {
    for (int e = lane; e < a.E; e += kWarpSize) most = fmaxf(most, logits[e]);
    for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
      most = fmaxf(most, __shfl_xor_sync(kAll, most, offset));
    }
    for (int e = lane; e < a.E; e += kWarpSize) {
      s[e] = expf(logits[e] - most);
      sum += s[e];
    }
    sum = warp_sum(sum);
  }
  for (int e = lane; e < a.E; e += kWarpSize) {
    s[e] = softmax ? s[e] / sum : sigmoid(logits[e]);
    c[e] = open_value(a.correction == nullptr ? s[e] : s[e] + a.correction[e]);
  }
  __syncwarp();
}

// Closes the experts of the groups that are not chosen. sums: (groups)
__device__ void close_groups(const RouterArgs& a, float* c, float* sums) {
  const int lane = static_cast<int>(threadIdx.x), size = a.E / a.groups;
  for (int g = lane; g < a.groups; g += kWarpSize) {
    float first = -INFINITY, second = -INFINITY;
    for (int i = 0; i < size; ++i) {
      const float value = c[g * size + i];
      second = fmaxf(second, fminf(first, value));
      first = fmaxf(first, value);
    }
    sums[g] = open_value(size > 1 ? first + second : first);
  }
  __syncwarp();
  for (int i = 0; i < a.top_groups; ++i) {
    const int g = largest(sums, a.groups);
    __syncwarp();
    if (lane == 0) sums[g] = kClosed;
    __syncwarp();
  }
  for (int e = lane; e < a.E; e += kWarpSize) {
    if (!isnan(sums[e / size])) c[e] = kClosed;
  }
  __syncwarp();
}

// A block is the warp of one row.
__global__ void __launch_bounds__(kWarpSize) choose_kernel(RouterArgs a) {
  extern __shared__ float memory[];
  let_next_start();
  wait_for_previous();
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t row = blockIdx.x;
  float *const s = memory, *const c = s + a.E;
  auto* const chosen = reinterpret_cast<unsigned*>(c + a.E);  // a bit for each expert
  float* const sums = c + a.E + words_of_experts(a.E);
  score(a, a.logits + row * a.stride, s, c);
  if (a.groups > 1) close_groups(a, c, sums);
  for (int w = lane; w < words_of_experts(a.E); w += kWarpSize) chosen[w] = 0;
  __syncwarp();
  float sum = 0;
  for (int i = 0; i < a.top; ++i) {
    const int e = largest(c, a.E);
    __syncwarp();
    if (lane == 0) {
      c[e] = kClosed;
      chosen[e / kWarpSize] |= 1u << e % kWarpSize;
    }
    __syncwarp();
  }
  int32_t* const expert = a.expert + row * a.top;
  int before = 0;
  for (int w = 0; w < words_of_experts(a.E); ++w) {
    const unsigned bits = chosen[w];
    const int e = w * kWarpSize + lane;
    if (bits >> lane & 1) {
      expert[before + __popc(bits & ((1u << lane) - 1))] = e;
      sum += s[e];
    }
    before += __popc(bits);
  }
  __syncwarp();
  sum = warp_sum(sum);
  for (int j = lane; j < a.top; j += kWarpSize) {
    const float score = s[expert[j]];
    a.weight[row * a.top + j] = a.scale * (a.renormalised ? score / sum : score);
  }
}

// A block lists the pairs of one expert.
constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;
__global__ void __launch_bounds__(kThreads) sort_kernel(RouterArgs a) {
  __shared__ int counts[kWarps];
  let_next_start();
  wait_for_previous();
  const int e = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int pairs = a.rows * a.top;
  const int warp = thread / kWarpSize, lane = thread % kWarpSize;
  int less = 0;
  for (int p = thread; p < pairs; p += kThreads) less += a.expert[p] < e;
  less = __reduce_add_sync(kAll, less);
  if (lane == 0) counts[warp] = less;
  __syncthreads();
  int position = 0;
  for (const int count : counts) position += count;
  if (thread == 0) {
    a.begin[e] = position;
    if (e == 0) a.begin[a.E] = pairs;
  }
  for (int first = 0; first < pairs; first += kThreads) {
    const int p = first + thread;
    const bool mine = p < pairs && a.expert[p] == e;
    const unsigned bits = __ballot_sync(kAll, mine);
    __syncthreads();  // the counts before were read
    if (lane == 0) counts[warp] = __popc(bits);
    __syncthreads();
    int at = position;
    for (int w = 0; w < kWarps; ++w) {
      at += w < warp ? counts[w] : 0;
      position += counts[w];
    }
    if (mine) a.pair[at + __popc(bits & ((1u << lane) - 1))] = p;
  }
}

}  // namespace

void run(const RouterArgs& args, Stream& stream) {
  const size_t shared = bytes_of_routed_row(args);
  abort_if_failed(cudaFuncSetAttribute(choose_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(shared)),
                  "router, shared memory");
  if (args.rows > 0) {
    launch_early(stream, "router", choose_kernel,
                 {.grid = static_cast<unsigned>(args.rows), .threads = kWarpSize, .shared = shared},
                 args);
  }
  launch_early(stream, "router", sort_kernel,
               {.grid = static_cast<unsigned>(args.E), .threads = kThreads}, args);
}

}  // namespace recurve::cuda::sm80
