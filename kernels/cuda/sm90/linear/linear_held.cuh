#pragma once
#include "kernels/cuda/sm90/linear/linear_tile.cuh"

// Weights that are packed, as a warpgroup takes them: it reads a box of 64 of its rows, as it lies
// in shared memory, and unpacks it in registers, which are the A of its products. Where rows of x
// are few each warp does that alone: linear_rows.cuh. A box is one group of columns. Values are
// those of WeightFormat::unpack, rounded to bf16: a layer has the bits of the one in bf16 of these
// values.
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

__device__ inline uint32_t times_bf16(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
__device__ inline uint32_t fma_bf16(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t sum;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  return sum;
}
// An integer up to 255, read as bf16, is as many of 2^-133: subnormal, or of the first exponent. By
// 2^127 it is as many of 2^-6, exactly.
constexpr uint32_t kTwoOfLargest = 0x7f007f00;  // 2^127
constexpr uint32_t kTwoOfMinus2 = 0xc000c000;   // -2
constexpr uint32_t kTwoOf64 = 0x42804280, kTwoOf4 = 0x40804080;

// A scale s below 2^-6 is direct by 2^133, which bf16 has then: times an integer that is read as
// bf16 it is that integer's value, in one operation that rounds once. Of larger scales it takes
// two.
constexpr uint32_t kLeastLargeScale = 0x3c80;      // 2^-6
constexpr uint32_t kTwoOfMinusLeast = 0x80808080;  // -2^-126
constexpr uint32_t kTwoOfSixteenth = 0x3d803d80;   // 2^-4

__device__ inline uint4 load_u128(uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}
__device__ inline void store_u128(uint32_t address, uint4 value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}
__device__ inline uint2 load_u64(uint32_t address) {
  uint2 value;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
               : "=r"(value.x), "=r"(value.y)
               : "r"(address)
               : "memory");
  return value;
}

// A lane's part of a box: of rows lane / 4 and that + 8 of its warp's 16, and of each step of 16
// columns, 2 (lane % 4), 2 (lane % 4) + 1, and these + 8.
using HeldBox = uint32_t[kBoxK / 16][4];

// kernels/formats/int8.h
struct Int8Weights {
  static constexpr bool kHeld = true;
  static constexpr int kRowBytes = 64, kStep = 64, kMostSpan = 2;
  static constexpr bool kByFours = true;  // see linear_rows.cuh
  using Scale = uint16_t;                 // in bf16

  // Of words of two scales each: whether one is large, and both made direct.
  __device__ static bool any_is_large(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    constexpr uint32_t kSizes = 0x7fff7fff;
    const uint32_t most = __vmaxu2(__vmaxu2(a & kSizes, b & kSizes),  //
                                   __vmaxu2(c & kSizes, d & kSizes));
    return max(most & 0xffff, most >> 16) >= kLeastLargeScale;
  }
  __device__ static uint32_t direct(uint32_t scales) {
    return times_bf16(times_bf16(scales, kTwoOfLargest), kTwoOf64);
  }

  // What values are multiplied by: of a scale, twice; kDirect: of one that direct() gave.
  template <bool kDirect = false>
  struct Factors {
    uint32_t scale, least;
    __device__ explicit Factors(uint32_t scales) {
      const uint32_t of_one = __byte_perm(scales, 0, 0x1010);
      scale = kDirect ? of_one : times_bf16(of_one, kTwoOf64);
      least = kDirect ? times_bf16(of_one, kTwoOfMinusLeast) : kTwoOfMinus2;  // -128 of the scale
    }
  };
  // word: four of q, as flipped() leaves them; which: two of its bytes, as __byte_perm() counts.
  __device__ static uint32_t flipped(uint32_t word) { return word ^ 0x80808080; }
  template <bool kDirect>
  __device__ static uint32_t two_values(uint32_t word, uint32_t which,
                                        const Factors<kDirect>& factors) {
    const uint32_t two = __byte_perm(word, 0, which);
    if constexpr (kDirect) return fma_bf16(two, factors.scale, factors.least);
    // q + 128 of 2^-6, less 2: q of 2^-6.
    return times_bf16(fma_bf16(two, kTwoOfLargest, factors.least), factors.scale);
  }
  // Eight columns from one at a multiple of eight on, of a row at W.
  __device__ static uint4 eight_values(const std::byte* W, int column, Scale scale) {
    uint2 q = __ldcs(reinterpret_cast<const uint2*>(W + column));
    q = make_uint2(flipped(q.x), flipped(q.y));
    const Factors<> factors(scale);
    return make_uint4(two_values(q.x, 0x4140, factors), two_values(q.x, 0x4342, factors),
                      two_values(q.y, 0x4140, factors), two_values(q.y, 0x4342, factors));
  }

  // W: the stage, of one box. row: the lane's first.
  __device__ static void unpack(HeldBox& values, const std::byte* W, int row,
                                const uint32_t (&scales)[2]) {
    const uint32_t from = place_in_stage<kRowBytes>(W, row, static_cast<int>(threadIdx.x % 4 * 2));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Factors<> factors(scales[r]);
#pragma unroll
      for (int step = 0; step < kBoxK / 16; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t two = load_u16((from ^ step * 16) + 8 * r * kRowBytes + half * 8);
          values[step][2 * half + r] = two_values(flipped(two), 0x4140, factors);
        }
      }
    }
  }
};

// kernels/formats/int4.h
struct Int4Weights {
  static constexpr bool kHeld = true;
  static constexpr int kRowBytes = 32, kStep = 32, kMostSpan = 4;
  static constexpr bool kByFours = false;
  using Scale = uint32_t;  // scale and minimum in bf16

  // Of words of a scale and a minimum each: as of int8.
  __device__ static bool any_is_large(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    constexpr uint32_t kSize = 0x7fff;
    return max(max(a & kSize, b & kSize), max(c & kSize, d & kSize)) >= kLeastLargeScale;
  }
  __device__ static uint32_t direct(uint32_t line) {
    constexpr uint32_t kLargestAnd1 = 0x3f807f00, k64And1 = 0x3f804280;
    return times_bf16(times_bf16(line, kLargestAnd1), k64And1);
  }

  template <bool kDirect = false>
  struct Factors {
    uint32_t scale, scale_of_high, least;
    __device__ explicit Factors(uint32_t scales) {
      const uint32_t of_one = __byte_perm(scales, 0, 0x1010);
      scale = kDirect ? of_one : times_bf16(of_one, kTwoOf64);
      scale_of_high = times_bf16(of_one, kDirect ? kTwoOfSixteenth : kTwoOf4);
      least = __byte_perm(scales, 0, 0x3232);
    }
  };
  // words: two, of which four bits each are of one step. The sum of s q and m is rounded once.
  template <bool kDirect>
  __device__ static uint32_t two_values(uint32_t words, int step, const Factors<kDirect>& factors) {
    // q of 2^-133, or 16 q; of 2^-6 where the scale is not direct.
    const bool high = step % 2 == 1;
    const uint32_t two = words >> step / 2 * 8 & (high ? 0x00f000f0 : 0x000f000f);
    return fma_bf16(kDirect ? two : times_bf16(two, kTwoOfLargest),
                    high ? factors.scale_of_high : factors.scale, factors.least);
  }
  // As of int8.
  __device__ static uint4 eight_values(const std::byte* W, int column, Scale scale) {
    const int group = column / kBoxK, step = column % kBoxK / 16;
    const uint4 words = __ldg(
        reinterpret_cast<const uint4*>(W + group * kRowBytes + column % 16 * sizeof(uint16_t)));
    const Factors<> factors(scale);
    const auto two = [&](uint32_t word) { return two_values(word >> 4 * step, 0, factors); };
    return make_uint4(two(words.x), two(words.y), two(words.z), two(words.w));
  }

  // As of int8.
  __device__ static void unpack(HeldBox& values, const std::byte* W, int row,
                                const uint32_t (&scales)[2]) {
    const uint32_t from = place_in_stage<kRowBytes>(W, row, static_cast<int>(threadIdx.x % 4 * 4));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Factors<> factors(scales[r]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // Two words, of which four bits each are of one step.
        const uint32_t words = load_u32((from ^ half * 16) + 8 * r * kRowBytes);
#pragma unroll
        for (int step = 0; step < kBoxK / 16; ++step) {
          values[step][2 * half + r] = two_values(words, step, factors);
        }
      }
    }
  }
};

// Of bf16 nothing is held.
template <typename T>
struct HeldWeights {
  __device__ HeldWeights(const Shared<T>&, const LinearParams&, const BlockCoord&, int) {}
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
  __device__ HeldWeights(const Shared<T>&, const LinearParams& params, const BlockCoord& block,
                         int first_row)
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
  // Unpacks the box of the stage at W, which is one of the four whose scales are ready.
  __device__ void unpack(const std::byte* W, int of_four) {
    const auto lane = static_cast<int>(threadIdx.x % kWarpSize / 4 * 4) + of_four;
    uint32_t of_box[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) of_box[r] = __shfl_sync(0xffffffffu, scales[0][r], lane);
    T::Weights::unpack(values, W, row, of_box);
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
