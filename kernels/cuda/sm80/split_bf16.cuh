#pragma once
#include <cstdint>

#include "kernels/cuda/common/math.cuh"

// Products of bf16 weights and fp32 activations on the tensor cores.
//
// An activation is cut into three bf16 values, hi + mid + lo, that add up to it exactly (8 bits of
// the significand each), so W x is three products of bf16 numbers, exact in fp32. The first goes to
// one accumulator, the two small ones to another, where their rounding does not count.
namespace recurve::cuda::sm80 {

constexpr int kSlab = 32;                  // of K; a lane holds 8 of it
constexpr int kTileN = 16, kTileRows = 8;  // of one mma: outputs and rows

// Weights are read once: they must not push the activations out of L1.
__device__ inline uint4 load_weights(const uint16_t* from) {
  uint4 w;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
               : "l"(from));
  return w;
}

// d += a b: a (16 outputs, 16 of K), b (16 of K, 8 rows).
__device__ inline void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                           uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ inline float upper_half(float x) {
  return __uint_as_float(__float_as_uint(x) & 0xffff0000u);
}
__device__ inline uint32_t upper_halves(float low, float high) {
  return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
}

// Eight activations, each part of them as four pairs of bf16.
template <int kParts>
struct Parts {
  uint4 part[kParts];
};
using Split = Parts<3>;  // hi, mid, lo
__device__ inline float rest_of(float x) { return isinf(x) ? 0.0f : x - upper_half(x); }
__device__ inline void split_pair(float x0, float x1, uint32_t& hi, uint32_t& mid, uint32_t& lo) {
  const float r0 = rest_of(x0), r1 = rest_of(x1);
  hi = upper_halves(x0, x1);
  mid = upper_halves(r0, r1);
  lo = upper_halves(r0 - upper_half(r0), r1 - upper_half(r1));
}
__device__ inline Split split(const float4& first, const float4& second) {
  Split s;
  split_pair(first.x, first.y, s.part[0].x, s.part[1].x, s.part[2].x);
  split_pair(first.z, first.w, s.part[0].y, s.part[1].y, s.part[2].y);
  split_pair(second.x, second.y, s.part[0].z, s.part[1].z, s.part[2].z);
  split_pair(second.z, second.w, s.part[0].w, s.part[1].w, s.part[2].w);
  return s;
}

// Eight activations, rounded.
__device__ inline Parts<1> round_to_parts(const float4& first, const float4& second) {
  return {{{round_bf16(first.x, first.y), round_bf16(first.z, first.w),
            round_bf16(second.x, second.y), round_bf16(second.z, second.w)}}};
}

// The sums of a warp's tile. Of a slab a lane holds, for each of its outputs and rows, the 8 values
// of K from 8 (lane % 4) on. In which places of the mma they stand does not matter, as long as both
// sides agree.
template <int kM, int kR>
struct Accumulator {
  float large[kM][kR][4] = {};
  float small[kM][kR][4] = {};

  // One slab of row tile r. w: two outputs of each tile.
  template <int kParts>
  __device__ void add(const uint4 (&w)[2 * kM], int r, const Parts<kParts>& x) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) add_part(w, r, x.part[part], half, part);
    }
  }

  // Calls visit(output, row, sum) for each element of the tile that this lane has.
  template <typename Visit>
  __device__ void for_each(Visit visit) const {
    const int group = threadIdx.x % kWarpSize / 4, quad = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int r = 0; r < kR; ++r) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          visit(m * kTileN + group + c / 2 * 8, r * kTileRows + 2 * quad + c % 2,
                large[m][r][c] + small[m][r][c]);
        }
      }
    }
  }

 private:
  // half: of each lane's 8 values.
  __device__ void add_part(const uint4 (&w)[2 * kM], int r, const uint4& b, int half, int part) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const uint4 &low = w[2 * m], &high = w[2 * m + 1];
      float(&sum)[4] = part == 0 ? large[m][r] : small[m][r];
      if (half == 0) {
        mma(sum, low.x, high.x, low.y, high.y, b.x, b.y);
      } else {
        mma(sum, low.z, high.z, low.w, high.w, b.z, b.w);
      }
    }
  }
};

}  // namespace recurve::cuda::sm80
