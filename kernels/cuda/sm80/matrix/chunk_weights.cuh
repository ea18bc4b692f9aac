#pragma once
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/matrix/chunks.cuh"
#include "kernels/cuda/sm80/matrix/matrix_chunk.h"
#include "kernels/cuda/sm80/tf32.cuh"

// What the kernels that find the weights of blocks of rows share. Sums of log decays grow backwards
// from the row they end with, so that none is a difference of large ones.
namespace recurve::cuda::sm80 {

constexpr int kWeightWarps = 4;  // a block
constexpr int kWeightThreads = kWeightWarps * kWarpSize;

// g[last] + g[last - 1] + ... + g[first]
__device__ inline float sum_back(const float* g, int last, int first) {
  float sum = 0;
  for (int i = last; i >= first; --i) sum += g[i];
  return sum;
}

// What rows of a block of L rows weigh in addition to their products, where a head has one decay a
// row.
struct RowDecays {
  const float* g;       // (L) its logarithm
  const float* weight;  // (L) what the row's key is multiplied by
  int L;
  __device__ float pair(int t, int j) const { return expf(sum_back(g, t, j + 1)) * weight[j]; }
  __device__ float of_state(int t) const { return expf(sum_back(g, t, 0)); }
  __device__ float in_state(int j) const { return weight[j] * expf(sum_back(g, L - 1, j + 1)); }
  __device__ float state_after() const { return expf(sum_back(g, L - 1, 0)); }
  __device__ float floor(int) const { return 1; }
};

// The products of queries and keys of a block of rows, as each warp has added them over its keys.
struct RowProducts {
  float of_warp[kWeightWarps][kBlockRows][kBlockRows];
  __device__ float at(int t, int j) const {
    float sum = of_warp[0][t][j];
    for (int warp = 1; warp < kWeightWarps; ++warp) sum += of_warp[warp][t][j];
    return sum;
  }
};

// A lane's sums of products, as tiles have them. Both are to be called by kWeightThreads threads.
using LaneProducts = float[kBlockRows / 8][4];
__device__ inline void keep_products(const LaneProducts& sums, RowProducts& products) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int g = threadIdx.x % kWarpSize / 4, q = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < kBlockRows / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      products.of_warp[warp][g + i / 2 * 8][8 * n + 2 * q + i % 2] = sums[n][i];
    }
  }
  __syncthreads();
}

// Multiplies the queries of L rows with their keys.
template <typename Query, typename Key>
__device__ void multiply_rows(int L, int DK, Query query, Key key, RowProducts& products) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int g = threadIdx.x % kWarpSize / 4, q = threadIdx.x % 4;
  const auto of_query = [&](int t, int x) { return cut(t < L && x < DK ? query(t, x) : 0); };
  const auto of_key = [&](int j, int x) { return cut(j < L && x < DK ? key(j, x) : 0); };
  TileSum sums[kBlockRows / 8];
#pragma unroll 4
  for (int x = 8 * warp + q; x - q < DK; x += 8 * kWeightWarps) {
    const LeftTile rows{
        {of_query(g, x), of_query(g + 8, x), of_query(g, x + 4), of_query(g + 8, x + 4)}};
#pragma unroll
    for (int n = 0; n < kBlockRows / 8; ++n) {
      sums[n].add(rows, {{of_key(8 * n + g, x), of_key(8 * n + g, x + 4)}});
    }
  }
  LaneProducts values;
#pragma unroll
  for (int n = 0; n < kBlockRows / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) values[n][i] = sums[n].value(i);
  }
  keep_products(values, products);
}

// The weights of L rows of a head. query(t, x), key(j, x): values of the block's rows. decays: as
// above. To be called by kWeightThreads threads.
template <typename Decays, typename Query, typename Key>
__device__ void weights_of_block(int L, int DK, float scale, const Decays& decays, Query query,
                                 Key key, BlockWeights& out) {
  __shared__ RowProducts products;
  multiply_rows(L, DK, query, key, products);
  for (int at = threadIdx.x; at < kBlockRows * kBlockRows; at += kWeightThreads) {
    const int t = at / kBlockRows, j = at % kBlockRows;
    out.P[t][j] = t < L && j <= t ? scale * products.at(t, j) * decays.pair(t, j) : 0;
  }
  const int t = static_cast<int>(threadIdx.x);
  if (t < kBlockRows) {
    out.e[t] = t < L ? scale * decays.of_state(t) : 0;
    out.w[t] = t < L ? decays.in_state(t) : 0;
    out.floor[t] = t < L ? decays.floor(t) : 0;
  }
  if (t == 0) out.F = decays.state_after();
}

}  // namespace recurve::cuda::sm80
