#pragma once
#include "kernels/cuda/sm90/linear/linear_tile.cuh"
#include "kernels/cuda/sm90/wgmma.cuh"

// How a warpgroup goes through the stages of a ring, and sums up products.
namespace recurve::cuda::sm90 {

// Goes through the stages of a ring: index is of the stage, parity how often modulo 2 the ring has
// been gone through.
struct RingStage {
  int index = 0;
  uint32_t parity = 0;
  __device__ void next(int stages) {
    if (++index < stages) return;
    index = 0;
    parity ^= 1;
  }
};

// The sums of one warpgroup: 64 rows of W by kRows rows of x or, in wide tilings, its share of the
// rows of x by kTileM rows of W.
template <typename T>
struct Accumulator {
  static constexpr int kColumns = T::kWide ? T::kTileM : T::kRows;
  static constexpr int kParts = T::kWide ? T::kRows / (T::kGroups * kGroupM) : 1;
  float parts[kParts][kColumns / 2];

  // row: the group's first. first: of the sums; what was in them before does not count.
  __device__ void add(const std::byte* W, const std::byte* x, int row, bool first) {
    const uint64_t a = operand(shared_address((T::kWide ? x : W) + row * kBoxBytes));
    const uint64_t b = operand(shared_address(T::kWide ? W : x));
#pragma unroll
    for (int step = 0; step < kBoxK / 16; ++step) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        multiply(parts[part], a + 2 * step + part * (kGroupM * kBoxBytes >> 4), b + 2 * step,
                 !first || step > 0);
      }
    }
  }

  // The same of weights that the warpgroup holds: of each step of 16 in the box those of its warps.
  __device__ void add_held(const uint32_t (&W)[kBoxK / 16][4], const std::byte* x, bool first) {
    const uint64_t b = operand(shared_address(x));
#pragma unroll
    for (int step = 0; step < kBoxK / 16; ++step) {
      multiply_held(parts[0], W[step], b + 2 * step, !first || step > 0);
    }
  }

  __device__ void clear() {
#pragma unroll
    for (float& sum : parts[0]) sum = 0;
  }

  __device__ void operator+=(const Accumulator& other) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) parts[part][i] += other.parts[part][i];
    }
  }

  // The layout of d: PTX ISA, wgmma.mma_async.m64nNk16.
  // scales: of the rows of x, or null.
  template <typename Sums>
  __device__ void store(Sums& sums, const float* scales, int first_row) const {
    const int warp = threadIdx.x % kGroupThreads / kWarpSize, lane = threadIdx.x % kWarpSize;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int row = first_row + part * kGroupM + warp * 16 + lane / 4;
      const int column = lane % 4 * 2;
      float scale[2] = {1, 1};  // of the two rows of x, where these are the rows
      if (T::kWide && scales != nullptr) {
        scale[0] = scales[row];
        scale[1] = scales[row + 8];
      }
#pragma unroll
      for (int i = 0; i < kColumns / 2; i += 2) {
        const int m = row + i % 4 / 2 * 8, n = column + i / 4 * 8;
        const float* two = &parts[part][i];
        if constexpr (T::kWide) {
          const float by = scale[i % 4 / 2];
          *reinterpret_cast<float2*>(&sums[m][n]) =
              make_float2(__fmul_rn(two[0], by), __fmul_rn(two[1], by));
        } else {
          sums[n][m] = two[0];
          sums[n + 1][m] = two[1];
        }
      }
    }
  }
};

}  // namespace recurve::cuda::sm90
