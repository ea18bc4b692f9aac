#include "kernels/cuda/common/dependency.cuh"
#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm80/attention/paged_attention.h"
#include "kernels/cuda/sm80/attention/pages.cuh"
#include "kernels/cuda/sm80/attention/part_sums.cuh"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm80/vector.cuh"

// Attention in fp32 for heads of any size and for both types of pages.
namespace recurve::cuda::sm80 {
namespace {

constexpr int kThreads = 128;
constexpr int kKeys = kAttentionPart / kThreads;  // of a part, a thread's

__device__ float block_max(float value) {
  __shared__ float of_warps[kThreads / kWarpSize];
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    value = max_of(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  if (threadIdx.x % kWarpSize == 0) of_warps[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  value = of_warps[0];
#pragma unroll
  for (int warp = 1; warp < kThreads / kWarpSize; ++warp) value = max_of(value, of_warps[warp]);
  __syncthreads();  // before the next one
  return value;
}

// Blocks: rows x heads. Shared memory: the query and its sums of values, (2, D).
template <typename T>
__global__ void __launch_bounds__(kThreads) attend_kernel(PagedAttentionArgs a) {
  extern __shared__ float floats[];
  __shared__ float weights[kAttentionPart];
  let_next_start();
  wait_for_previous();
  const int64_t row = blockIdx.x / a.H;
  const int head = static_cast<int>(blockIdx.x % a.H), shared_by = a.H / a.HK;
  float* const o = a.o + (row * a.H + head) * a.D;
  const int32_t slot = a.seqs.slot[sequence_of(a.seqs, row)];
  if (slot == 0) {
    for (int d = threadIdx.x; d < a.D; d += kThreads) o[d] = 0;
    return;
  }
  float *const q = floats, *const all = floats + a.D;
  for (int d = threadIdx.x; d < a.D; d += kThreads) {
    q[d] = __fmul_rn(query_of(a, row, head)[d], score_scale(a.scale));
  }
  const int64_t of_head = static_cast<int64_t>(head / shared_by) * kPageTokens * a.D;
  const int64_t keys = static_cast<int64_t>(a.position[row]) + 1;
  PartSums sums;
  for (int64_t from = 0; from < keys; from += kAttentionPart) {
    const int count = static_cast<int>(min(keys - from, static_cast<int64_t>(kAttentionPart)));
    __syncthreads();  // the query is there, and the weights before are no longer read
    float scores[kKeys], largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int x = i * kThreads + static_cast<int>(threadIdx.x);
      scores[i] = -INFINITY;
      if (x >= count) continue;
      const int32_t page = page_of(a.keys, slot, (from + x) / kPageTokens);
      const T* key = page_at<T>(a.keys, page) + of_head + x % kPageTokens;
      float product = 0;
#pragma unroll 8
      for (int d = 0; d < a.D; ++d) {
        product = __fmaf_rn(q[d], value_of(key[d * kPageTokens]), product);
      }
      scores[i] = product;
      largest = max_of(largest, scores[i]);
    }
    const float bound = ceilf(block_max(largest));
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int x = i * kThreads + static_cast<int>(threadIdx.x);
      const float weight = x < count ? weight_of(scores[i], origin_of(bound)) : 0;
      weights[x] = weight;
      sum = __fadd_rn(sum, weight);
    }
    const PartScales scales = sums.join(from == 0, bound, block_sum<kThreads>(sum));
    for (int d = threadIdx.x; d < a.D; d += kThreads) {
      float part = 0;
      for (int x = 0; x < count;) {
        const int32_t page = page_of(a.values, slot, (from + x) / kPageTokens);
        const T* value = page_at<T>(a.values, page) + of_head + d;
        const int tokens = min(count - x, static_cast<int>(kPageTokens));
#pragma unroll 8
        for (int t = 0; t < tokens; ++t) {
          part = __fmaf_rn(weights[x + t], value_of(value[static_cast<int64_t>(t) * a.D]), part);
        }
        x += tokens;
      }
      all[d] = from == 0 ? part : scales.join(all[d], part);
    }
  }
  for (int d = threadIdx.x; d < a.D; d += kThreads) {
    o[d] = finished(all[d], sums.reciprocal(), gate_of(a, row, head, d));
  }
}

}  // namespace

void run(const PagedAttentionArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  if (paged_attention_tiles(args)) return attend_by_tiles(args, stream);
  const auto kernel =
      args.keys.dtype == DType::kBF16 ? attend_kernel<uint16_t> : attend_kernel<float>;
  launch_early(stream, "paged_attention", kernel,
               {.grid = static_cast<unsigned>(static_cast<int64_t>(args.seqs.rows) * args.H),
                .threads = kThreads,
                .shared = 2 * sizeof(float) * static_cast<size_t>(args.D)},
               args);
}

}  // namespace recurve::cuda::sm80
