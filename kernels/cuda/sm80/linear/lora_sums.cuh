#pragma once
#include "kernels/cuda/sm80/linear/lora.cuh"

// What the rows of B add to four outputs of the rows of a tile: in the kernel behind a layer, and
// in those layers that end with it.
namespace recurve::cuda::sm80 {

template <int kRows>
using Fours = float[kRows][kFour];

// Adds a row of B times the values of the rows' inner vectors.
template <int kRows>
__device__ void add_row(const float4& w, const float (&inner)[kRows], Fours<kRows>& sum) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    sum[r][0] = fmaf(w.x, inner[r], sum[r][0]);
    sum[r][1] = fmaf(w.y, inner[r], sum[r][1]);
    sum[r][2] = fmaf(w.z, inner[r], sum[r][2]);
    sum[r][3] = fmaf(w.w, inner[r], sum[r][3]);
  }
}

// Where B has four outputs that follow each other in a panel, or one alone.
struct Columns {
  int64_t at;
  int width;  // of the panel
  __device__ Columns(const Part& part, int n) {
    const int panel = n / static_cast<int>(kLoraPanel) * static_cast<int>(kLoraPanel);
    width = min(static_cast<int>(kLoraPanel), part.N - panel);
    at = int64_t{panel} * part.r + n - panel;
  }
};

// Adds up to four rows of B, whose values for the first `count` of four outputs are `width` apart.
// inner(r): of row r of the tile, the four values of A x that go with them.
template <bool kVector, int kRows, typename T, typename Inner>
__device__ __forceinline__ void add_four(const T* B, int64_t width, int ranks, int count,
                                         const Inner& inner, Fours<kRows>& sum) {
  float values[kFour][kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float4 v = inner(r);
    values[0][r] = v.x;
    values[1][r] = v.y;
    values[2][r] = v.z;
    values[3][r] = v.w;
  }
  float4 w[kFour];
#pragma unroll
  for (int j = 0; j < kFour; ++j) w[j] = load4<kVector>(B + j * width, j < ranks ? count : 0);
#pragma unroll
  for (int j = 0; j < kFour; ++j) {
    if (j < ranks) add_row<kRows>(w[j], values[j], sum);
  }
}

// sum: of all rows of B, of the first `count` of four outputs. inner(r, four): of row r of the
// tile, A x of four ranks of the part. kUnroll: fours of rows of B that are on their way at once.
template <bool kVector, int kUnroll, int kRows, typename T, typename Inner>
__device__ __forceinline__ void sum_columns_of(const Part& part, const Columns& columns, int count,
                                               const Inner& inner, Fours<kRows>& sum) {
  const T* B = static_cast<const T*>(part.B) + columns.at;
  const int whole = part.r / kFour;
#pragma unroll(kUnroll)
  for (int four = 0; four < whole; ++four) {
    add_four<kVector, kRows>(
        B, columns.width, kFour, count, [&](int r) { return inner(r, four); }, sum);
    B += kFour * columns.width;
  }
  if (part.r > whole * kFour) {
    add_four<kVector, kRows>(
        B, columns.width, part.r % kFour, count, [&](int r) { return inner(r, whole); }, sum);
  }
}
template <bool kVector, int kUnroll, int kRows, typename Inner>
__device__ __forceinline__ void sum_columns(const Part& part, const Columns& columns, int count,
                                            const Inner& inner, Fours<kRows>& sum) {
  if (part.bf16) {
    sum_columns_of<kVector, kUnroll, kRows, uint16_t>(part, columns, count, inner, sum);
  } else {
    sum_columns_of<kVector, kUnroll, kRows, float>(part, columns, count, inner, sum);
  }
}

// What is added to an output, whose part has this sum: rounded before it is added.
__device__ inline float scaled_sum(const Part& part, float sum) {
  return __fmul_rn(part.scale, sum);
}

}  // namespace recurve::cuda::sm80
