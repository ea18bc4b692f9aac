#pragma once
#include <cstdint>

// Products of fp32 values on the tensor cores. A value is cut into a large and a small part of 11
// bits each; of their products the one of both small parts, 2^-24 of the whole, is left out. The
// large part is rounded to nearest: were it cut off, both small parts would have their values'
// signs, and what is left out would not cancel over the terms of a sum.
namespace recurve::cuda::sm80 {

struct CutFloat {
  uint32_t large, small;
};
__device__ inline CutFloat cut(float x) {
  const uint32_t large = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
  const float rest = isinf(x) ? 0.0f : x - __uint_as_float(large);
  return {large, __float_as_uint(rest)};
}

// The same, where a value that is not finite may become NaN.
__device__ inline CutFloat cut_finite(float x) {
  const uint32_t large = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
  return {large, __float_as_uint(x - __uint_as_float(large))};
}

// d += a b: a (16, 8), b (8, 8).
__device__ inline void mma_tf32(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// What a lane holds, with g = lane / 4 and q = lane % 4:
//   of a (16, 8): (g, q), (g + 8, q), (g, q + 4), (g + 8, q + 4)
//   of b (8, 8):  (q, g), (q + 4, g)
//   of d (16, 8): (g, 2 q), (g, 2 q + 1), (g + 8, 2 q), (g + 8, 2 q + 1)
struct LeftTile {
  CutFloat at[4];
};
struct RightTile {
  CutFloat at[2];
};

// Three sums, so that none waits for another.
struct TileSum {
  float large[4] = {}, small[2][4] = {};

  __device__ void add(const LeftTile& a, const RightTile& b) {
    mma_tf32(small[0], a.at[0].small, a.at[1].small, a.at[2].small, a.at[3].small, b.at[0].large,
             b.at[1].large);
    mma_tf32(small[1], a.at[0].large, a.at[1].large, a.at[2].large, a.at[3].large, b.at[0].small,
             b.at[1].small);
    mma_tf32(large, a.at[0].large, a.at[1].large, a.at[2].large, a.at[3].large, b.at[0].large,
             b.at[1].large);
  }
  __device__ float value(int i) const { return large[i] + (small[0][i] + small[1][i]); }
};

}  // namespace recurve::cuda::sm80
