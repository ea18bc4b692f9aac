#pragma once
#include "kernels/cuda/sm80/split_bf16.cuh"

// Products of bf16 weights and the outputs h of recurrent cells on the tensor cores.
//
// A value of h is taken as two bf16 values, hi and lo, each rounded to nearest, that add up to it
// but for 2^-18 of it. Each has a separate sum, and these are added in the end: so they may stand
// in one column of an mma after the other or in two adjacent ones, to the same bits.
namespace recurve::cuda::sm80 {

constexpr int kRnnRanges = 8;  // of h, each with its sums, added from the first to the last
constexpr int kRnnParts = 2;   // of a value of h

// Eight values of h as four pairs each.
struct RnnSplit {
  uint4 part[kRnnParts];
};

__device__ inline void split_rnn_pair(float x0, float x1, uint32_t& hi, uint32_t& lo) {
  hi = round_bf16(x0, x1);
  const auto rest = [](float x, float of_hi) { return isinf(of_hi) ? 0.0f : x - of_hi; };
  lo = round_bf16(rest(x0, __uint_as_float(hi << 16)), rest(x1, upper_half(__uint_as_float(hi))));
}
__device__ inline RnnSplit split_rnn(const float4& first, const float4& second) {
  RnnSplit s;
  split_rnn_pair(first.x, first.y, s.part[0].x, s.part[1].x);
  split_rnn_pair(first.z, first.w, s.part[0].y, s.part[1].y);
  split_rnn_pair(second.x, second.y, s.part[0].z, s.part[1].z);
  split_rnn_pair(second.z, second.w, s.part[0].w, s.part[1].w);
  return s;
}

// A slab of 16 outputs: low and high are the weights of outputs lane / 4 and 8 behind it.
__device__ inline void add_rnn_half(float (&sum)[4], const uint4& low, const uint4& high,
                                    const uint4& h, int half) {
  if (half == 0) {
    mma(sum, low.x, high.x, low.y, high.y, h.x, h.y);
  } else {
    mma(sum, low.z, high.z, low.w, high.w, h.z, h.w);
  }
}

// The sums of a warp's tiles: kM of 16 outputs with 8 sequences. See Accumulator.
template <int kM>
struct RnnAccumulator {
  float sums[kRnnParts][kM][4] = {};

  __device__ void add(const uint4 (&w)[2 * kM], const RnnSplit& h) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int part = 0; part < kRnnParts; ++part) {
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          add_rnn_half(sums[part][m], w[2 * m], w[2 * m + 1], h.part[part], half);
        }
      }
    }
  }
  // Calls visit(output, row, sum) for each element of the tile that this lane has.
  template <typename Visit>
  __device__ void for_each(Visit visit) const {
    const int group = threadIdx.x % kWarpSize / 4, quad = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        visit(m * kTileN + group + c / 2 * 8, 2 * quad + c % 2, sums[0][m][c] + sums[1][m][c]);
      }
    }
  }
};

}  // namespace recurve::cuda::sm80
