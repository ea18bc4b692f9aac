#pragma once
#include "kernels/cuda/sm90/linear/linear_tile.cuh"

// Weights that are packed, as a warpgroup takes them, or each of its warps alone where rows of x
// are few: it reads a box of 64 of its rows, as it lies in shared memory, and unpacks it in
// registers, which are the A of its products. A box is one group of columns. Values are those of
// WeightFormat::unpack, rounded to bf16: a layer has the bits of the one in bf16 of these values.
namespace recurve::cuda::sm90 {

// Where a lane reads in a stage at W, whose rows are of so many bytes, with the copy engine's
// swizzle of as many: it goes by the address, its bits of 16 bytes by those of 128. A further 16
// bytes of a row are found by turning these bits. Stages begin at multiples of eight such lines,
// and rows that are 8 apart are turned alike.
template <int kRowBytes>
__device__ inline uint32_t place_in_stage(const std::byte* W, int row, int place) {
  const int turn = (row * kRowBytes >> 7 & (kRowBytes / 16 - 1)) << 4;
  return shared_address(W) + row * kRowBytes + turn + place;
}
__device__ inline uint32_t load_u16(uint32_t address) {
  uint16_t value;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(value) : "r"(address) : "memory");
  return value;
}
__device__ inline uint32_t load_u32(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

// (bits & mask) | raised in one instruction. The compiler takes two where both are constants.
template <uint32_t kMask>
__device__ inline uint32_t masked_or(uint32_t bits, uint32_t raised) {
  uint32_t found;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(found) : "r"(bits), "n"(kMask), "r"(raised));
  return found;
}
// Two of 128 in bf16, whose lowest bits count ones.
constexpr uint32_t kTwoOf128 = 0x43004300;

__device__ inline uint32_t minus_bf16(uint32_t a, uint32_t b) {
  uint32_t difference;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(difference) : "r"(a), "r"(b));
  return difference;
}

// A lane's part of a box: of rows lane / 4 and that + 8 of its warp's 16, and of each step of 16
// columns, 2 (lane % 4), 2 (lane % 4) + 1, and these + 8.
using HeldBox = uint32_t[kBoxK / 16][4];

// kernels/formats/int8.h
struct Int8Weights {
  static constexpr bool kHeld = true;
  static constexpr int kRowBytes = 64, kStep = 64, kMostSpan = 2;
  using Scale = uint16_t;  // in bf16

  // two: q, each in 16 bits. scale: twice.
  __device__ static uint32_t two_values(uint32_t two, uint32_t scale) {
    // 128 and the last seven bits of q, less 128 or, where its first bit is set, 256.
    const uint32_t q =
        minus_bf16(masked_or<0x007f007f>(two, kTwoOf128), masked_or<0x00800080>(two, kTwoOf128));
    uint32_t values;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(values) : "r"(q), "r"(scale));
    return values;
  }
  // Eight columns from one at a multiple of eight on, of a row at W.
  __device__ static uint4 eight_values(const std::byte* W, int column, Scale scale) {
    const uint2 q = __ldcs(reinterpret_cast<const uint2*>(W + column));
    const uint32_t s = __byte_perm(scale, 0, 0x1010);
    return make_uint4(
        two_values(__byte_perm(q.x, 0, 0x4140), s), two_values(__byte_perm(q.x, 0, 0x4342), s),
        two_values(__byte_perm(q.y, 0, 0x4140), s), two_values(__byte_perm(q.y, 0, 0x4342), s));
  }

  // W: the stage. row: the lane's first. box: of the stage.
  template <int kSpan>
  __device__ static void unpack(HeldBox& values, const std::byte* W, int row, int box,
                                const uint32_t (&scales)[2]) {
    const uint32_t from =
        place_in_stage<kSpan * kRowBytes>(W, row, static_cast<int>(threadIdx.x % 4 * 2));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t scale = __byte_perm(scales[r], 0, 0x1010);
#pragma unroll
      for (int step = 0; step < kBoxK / 16; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t two = __byte_perm(load_u16((from ^ (box * kRowBytes + step * 16)) +
                                                    8 * r * kSpan * kRowBytes + half * 8),
                                           0, 0x4140);
          values[step][2 * half + r] = two_values(two, scale);
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

  // two: q in the last four bits of 16 each. scale, least: twice. The lowest bits of 128 in bf16
  // count ones: 128 + q, less 128, is exact, and the sum of s q and m is rounded once.
  __device__ static uint32_t two_values(uint32_t two, uint32_t scale, uint32_t least) {
    const uint32_t q = minus_bf16(masked_or<0x000f000f>(two, kTwoOf128), kTwoOf128);
    uint32_t values;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(values) : "r"(q), "r"(scale), "r"(least));
    return values;
  }
  // As of int8.
  __device__ static uint4 eight_values(const std::byte* W, int column, Scale scale) {
    const int group = column / kBoxK, step = column % kBoxK / 16;
    const uint4 words = __ldg(
        reinterpret_cast<const uint4*>(W + group * kRowBytes + column % 16 * sizeof(uint16_t)));
    const uint32_t s = __byte_perm(scale, 0, 0x1010), least = __byte_perm(scale, 0, 0x3232);
    return make_uint4(
        two_values(words.x >> 4 * step, s, least), two_values(words.y >> 4 * step, s, least),
        two_values(words.z >> 4 * step, s, least), two_values(words.w >> 4 * step, s, least));
  }

  // As of int8.
  template <int kSpan>
  __device__ static void unpack(HeldBox& values, const std::byte* W, int row, int box,
                                const uint32_t (&scales)[2]) {
    const uint32_t from =
        place_in_stage<kSpan * kRowBytes>(W, row, static_cast<int>(threadIdx.x % 4 * 4));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t scale = __byte_perm(scales[r], 0, 0x1010);
      const uint32_t least = __byte_perm(scales[r], 0, 0x3232);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // Two words, of which four bits each are of one step.
        const uint32_t words =
            load_u32((from ^ (box * kRowBytes + half * 16)) + 8 * r * kSpan * kRowBytes);
#pragma unroll
        for (int step = 0; step < kBoxK / 16; ++step) {
          values[step][2 * half + r] = two_values(words >> 4 * step, scale, least);
        }
      }
    }
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
  requires T::Weights::kHeld
struct HeldWeights<T> {
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

  // Makes the scales of the four boxes from i on ready, after those before.
  __device__ void take_scales(int i) {
    if (i == 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int ahead = 0; ahead + 1 < kAhead; ++ahead) scales[ahead][r] = scales[ahead + 1][r];
    }
    load(kAhead - 1, i + 4 * (kAhead - 1));
  }
  // Unpacks a box, so many behind the first of the stage at W, and one of the four whose scales are
  // ready.
  template <int kBox>
  __device__ void unpack(const std::byte* W, int of_four) {
    const auto lane = static_cast<int>(threadIdx.x % kWarpSize / 4 * 4) + of_four;
    uint32_t of_box[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) of_box[r] = __shfl_sync(0xffffffffu, scales[0][r], lane);
    T::Weights::template unpack<T::kSpan>(values, W, row, kBox, of_box);
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
