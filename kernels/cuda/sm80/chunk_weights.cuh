#pragma once
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/chunks.cuh"
#include "kernels/cuda/sm80/matrix_chunk.h"

// What the kernels that find the weights of blocks of rows share. Sums of log decays grow backwards
// from the row they end with, so that none is a difference of large ones.
namespace recurve::cuda::sm80 {

constexpr int kWeightWarps = 4;  // a block
constexpr int kWeightThreads = kWeightWarps * kWarpSize;

// The rows of a warp, number i of kBlockRows / kWeightWarps: all warps have as many pairs of them.
__device__ inline int row_of_warp(int i) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  return kWeightWarps * i + (i % 2 == 0 ? warp : kWeightWarps - 1 - warp);
}

// g[last] + g[last - 1] + ... + g[first]
__device__ inline float sum_back(const float* g, int last, int first) {
  float sum = 0;
  for (int i = last; i >= first; --i) sum += g[i];
  return sum;
}

// Lane j gets the sum over the lanes of values[j].
__device__ inline float sums_of_rows(const float (&values)[kBlockRows], int count) {
  float mine = 0;
#pragma unroll
  for (int j = 0; j < kBlockRows; ++j) {
    if (j >= count) break;
    const float sum = warp_sum(values[j]);
    if (static_cast<int>(threadIdx.x) % kWarpSize == j) mine = sum;
  }
  return mine;
}

// The weights of L rows of a head with one decay a row. g, weight: (L) its logarithm and what the
// row's key is multiplied by, in shared memory. query(t, x), key(j, x): values of the block's rows.
// To be called by kWeightThreads threads.
template <typename Query, typename Key>
__device__ void weights_of_block(int L, int DK, float scale, const float* g, const float* weight,
                                 Query query, Key key, BlockWeights& out) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (int i = 0; i < kBlockRows / kWeightWarps; ++i) {
    const int t = row_of_warp(i);
    float products[kBlockRows] = {};
    for (int x = lane; x < DK && t < L; x += kWarpSize) {
      const float q = query(t, x);
#pragma unroll
      for (int j = 0; j < kBlockRows; ++j) {
        if (j <= t) products[j] = fmaf(q, key(j, x), products[j]);
      }
    }
    const float product = sums_of_rows(products, t < L ? t + 1 : 0);
    if (lane >= kBlockRows) continue;
    const bool counts = t < L && lane <= t;
    out.P[t][lane] = counts ? scale * product * expf(sum_back(g, t, lane + 1)) * weight[lane] : 0;
  }
  const int t = static_cast<int>(threadIdx.x);
  if (t < kBlockRows) {
    out.e[t] = t < L ? scale * expf(sum_back(g, t, 0)) : 0;
    out.w[t] = t < L ? weight[t] * expf(sum_back(g, L - 1, t + 1)) : 0;
  }
  if (t == 0) out.F = expf(sum_back(g, L - 1, 0));
}

}  // namespace recurve::cuda::sm80
