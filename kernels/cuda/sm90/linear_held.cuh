#pragma once
#include "kernels/cuda/sm90/linear_tile.cuh"

// Weights that are packed, as a warpgroup takes them: it reads a box of 64 of its rows, as it lies
// in shared memory, and unpacks it in registers, which are the A of its products. A box is one
// group of columns. Values are those of WeightFormat::unpack, rounded to bf16: a layer has the bits
// of the one in bf16 of these values.
namespace recurve::cuda::sm90 {

// Where a lane reads in a stage, whose rows are of so many bytes, with the copy engine's swizzle of
// as many: it goes by the address, its bits of 16 bytes by those of 128. Stages begin at multiples
// of eight such lines, and rows that are 8 apart are turned alike.
template <int kRowBytes>
__device__ inline int turn_of(int row) {
  return (row * kRowBytes >> 7 & (kRowBytes / 16 - 1)) << 4;
}

// A lane's part of a box: of rows lane / 4 and that + 8 of its warp's 16, and of each step of 16
// columns, 2 (lane % 4), 2 (lane % 4) + 1, and these + 8.
using HeldBox = uint32_t[kBoxK / 16][4];

// kernels/formats/int8.h
struct Int8Weights {
  static constexpr bool kHeld = true;
  static constexpr int kRowBytes = 64, kStep = 64, kMostSpan = 2;
  using Scale = uint16_t;  // in bf16

  // W: the stage. row: the lane's first. box: of the stage.
  template <int kSpan>
  __device__ static void unpack(HeldBox& values, const std::byte* W, int row, int box,
                                const uint32_t (&scales)[2]) {
    const int turned = turn_of<kSpan * kRowBytes>(row), place = threadIdx.x % 4 * 2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::byte* from = W + (row + 8 * r) * kSpan * kRowBytes + place;
      // Bits 8 to 15 of the fp32 value 2^15 count ones: with q + 128 there, which is q with its
      // first bit flipped, it is 2^15 + 128 + q, and s q is s times that less s (2^15 + 128),
      // exactly.
      const float scale = __uint_as_float(scales[r] << 16), rest = scale * -32896.0f;
#pragma unroll
      for (int step = 0; step < kBoxK / 16; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t two = *reinterpret_cast<const uint16_t*>(
                                   from + ((box * kRowBytes + step * 16) ^ turned) + half * 8) ^
                               0x8080u;
          const float low = __uint_as_float(__byte_perm(two, 0x47000000u, 0x7404));
          const float high = __uint_as_float(__byte_perm(two, 0x47000000u, 0x7414));
          values[step][2 * half + r] = round_bf16(fmaf(low, scale, rest), fmaf(high, scale, rest));
        }
      }
    }
  }
};

// kernels/formats/int4.h
struct Int4Weights {
  static constexpr bool kHeld = true;
  static constexpr int kRowBytes = 32, kStep = 32, kMostSpan = 4;
  using Scale = uint32_t;  // scale and minimum in bf16

  // As of int8.
  template <int kSpan>
  __device__ static void unpack(HeldBox& values, const std::byte* W, int row, int box,
                                const uint32_t (&scales)[2]) {
    const int turned = turn_of<kSpan * kRowBytes>(row), place = threadIdx.x % 4 * 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::byte* from = W + (row + 8 * r) * kSpan * kRowBytes + place;
      const uint32_t scale = __byte_perm(scales[r], 0, 0x1010);
      const uint32_t least = __byte_perm(scales[r], 0, 0x3232);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // Two words, of which four bits each are of one step.
        const uint32_t words =
            *reinterpret_cast<const uint32_t*>(from + ((box * kRowBytes + half * 16) ^ turned));
#pragma unroll
        for (int step = 0; step < kBoxK / 16; ++step) {
          // The lowest bits of 128 in bf16 count ones, so this is 128 + q.
          const uint32_t raised = (words >> 4 * step & 0x000f000fu) | 0x43004300u;
          values[step][2 * half + r] = line_at(raised, scale, least);
        }
      }
    }
  }

 private:
  // s q + m of 128 + q, two at a time: q is exact, and the sum is rounded once.
  __device__ static uint32_t line_at(uint32_t raised, uint32_t scale, uint32_t least) {
    uint32_t q, w;
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(q) : "r"(raised), "r"(0x43004300u));
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(w) : "r"(q), "r"(scale), "r"(least));
    return w;
  }
};

// Of bf16 nothing is held.
template <typename T>
struct HeldWeights {
  __device__ HeldWeights(const LinearParams&, const BlockCoord&, int) {}
};

// What a lane has of packed weights: a box, and the scales of its two rows for boxes to come. Of
// four lanes that share their rows each has those of one box in four, so that loads are on their
// way long before they are used.
template <typename T>
requires T::Weights::kHeld struct HeldWeights<T> {
  using Scale = typename T::Weights::Scale;
  HeldBox values;

  // first_row: of the tile, the warpgroup's. Reads scales, which no kernel writes.
  __device__ HeldWeights(const LinearParams& params, const BlockCoord& block, int first_row)
      : boxes(block.boxes),
        row(first_row + threadIdx.x % kGroupThreads / kWarpSize * 16 +
            threadIdx.x % kWarpSize / 4) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int of_tile = row + 8 * r;
      const int of_W = block.W_row + of_tile +
                       (of_tile < params.box_rows ? 0 : params.box_offset - params.box_rows);
      // What is behind the matrix is multiplied, and not used.
      from[r] = static_cast<const Scale*>(params.W_scales) +
                static_cast<int64_t>(min(of_W, params.W_rows - 1)) * params.boxes + block.first_box;
    }
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) load(ahead, 4 * ahead);
  }

  // Unpacks box i of the block, after i - 1. W: the stage where it is.
  __device__ void unpack(const std::byte* W, int i) {
    if (i > 0 && i % 4 == 0) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int ahead = 0; ahead + 1 < kAhead; ++ahead) scales[ahead][r] = scales[ahead + 1][r];
      }
      load(kAhead - 1, i + 4 * (kAhead - 1));
    }
    const int lane = static_cast<int>(threadIdx.x % kWarpSize / 4 * 4) + i % 4;
    uint32_t of_box[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) of_box[r] = __shfl_sync(0xffffffffu, scales[0][r], lane);
    T::Weights::template unpack<T::kSpan>(values, W, row, i % T::kSpan, of_box);
  }

 private:
  static constexpr int kAhead = 3;  // fours of boxes
  const Scale* from[2];
  uint32_t scales[kAhead][2];
  int boxes, row;

  // The four boxes from `first` on.
  __device__ void load(int ahead, int first) {
    const int box = first + static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int r = 0; r < 2; ++r) scales[ahead][r] = box < boxes ? __ldg(from[r] + box) : 0u;
  }
};

}  // namespace recurve::cuda::sm90
