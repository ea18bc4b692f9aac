#pragma once
#include <cstdint>

#include "kernels/cuda/sm80/linear/weight_rows.cuh"
#include "kernels/cuda/sm80/split_bf16.cuh"

// How a warp reads kCount times 8 outputs of a matrix for products on the tensor cores, 64 columns
// at a time. Lane l has 16 of these columns of the rows l / 4 of each eight: in bf16, which every
// value before its scale is, as two slabs of split_bf16.cuh. column(i) is where the four columns
// begin that go with the i-th four of these 16.
//
// Or it reads them from shared memory, where a row of a group has kBytes for weights and 128 for x
// in bf16. There chunk c of 16 bytes of row r stands at place weight_place(r, c) or x_place(r, c),
// so that lanes that read together meet different banks.
namespace recurve::cuda::sm80 {

constexpr int kGroup = static_cast<int>(kPackedGroup);  // columns read at a time
static_assert(kGroup == 2 * kSlab);

__device__ inline int lane_quad() { return static_cast<int>(threadIdx.x) % 4; }
constexpr int kRowBytes = kGroup * 2;  // of x

__device__ inline uint32_t fma_two(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t sum;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  return sum;
}
// Integers of packed weights are multiplied as so many of this. An integer up to 255, read as bf16,
// is as many of 2^-133: times 2^127 it is as many units.
constexpr float kUnit = 0x1p-6f;
constexpr uint32_t kTwoUnits = 0x7f007f00u;       // 2^127
constexpr uint32_t kTwoSixteenths = 0x7d007d00u;  // 2^123

struct ExpertBf16 {
  static constexpr bool kScaled = false, kHasMinimum = false;
  static constexpr int kBytes = kRowBytes;
  struct Held {
    uint4 slabs[2];
  };
  const uint16_t* row;
  int K;

  __device__ ExpertBf16(const Matrix& W, int64_t n)
      : row(static_cast<const uint16_t*>(W.data) + n * W.K), K(static_cast<int>(W.K)) {}
  __device__ static int column(int i) { return i / 2 * kSlab + 8 * lane_quad() + i % 2 * 4; }
  __device__ void load(Held& held, int group) const {
#pragma unroll
    for (int slab = 0; slab < 2; ++slab) {
      const int k = group * kGroup + slab * kSlab + 8 * lane_quad();
      held.slabs[slab] = k < K ? load_weights(row + k) : make_uint4(0, 0, 0, 0);
    }
  }
  __device__ static uint4 slab(const Held& held, int slab) { return held.slabs[slab]; }

  __device__ static int weight_place(int r, int c) { return c ^ r % 2 * 4; }
  __device__ static int x_place(int r, int c) { return weight_place(r, c); }
  __device__ static void read(Held& held, const char* rows, int r) {
#pragma unroll
    for (int slab = 0; slab < 2; ++slab) held.slabs[slab] = read_x(rows, r, slab);
  }
  __device__ static uint4 read_x(const char* rows, int r, int slab) {
    return *reinterpret_cast<const uint4*>(rows + r * kRowBytes +
                                           16 * x_place(r, 4 * slab + lane_quad()));
  }
  __device__ void load_scale(Held&, int) const {}
};

struct ExpertInt8 {
  static constexpr bool kScaled = true, kHasMinimum = false;
  static constexpr int kBytes = kGroup;
  struct Held {
    uint4 q;
    uint16_t scale;
  };
  const uint16_t* row;  // two values each
  const uint16_t* scales;

  __device__ ExpertInt8(const Matrix& W, int64_t n)
      : row(static_cast<const uint16_t*>(W.data) + n * packed_groups(W.K) * (kGroup / 2)),
        scales(static_cast<const uint16_t*>(W.scales) + n * packed_groups(W.K)) {}
  __device__ static int column(int i) { return 16 * lane_quad() + 4 * i; }
  __device__ void load(Held& held, int group) const {
    held.q = load_weights(row + group * (kGroup / 2) + 8 * lane_quad());
    load_scale(held, group);
  }
  __device__ void load_scale(Held& held, int group) const { held.scale = __ldg(scales + group); }
  // Four bytes become bf16, exactly, of kUnit: with 128 added they are subnormal.
  __device__ static void widen(uint32_t q, uint32_t& first, uint32_t& second) {
    constexpr uint32_t kMinus128 = 0xc000c000u;  // units
    const uint32_t raised = q ^ 0x80808080u;
    first = fma_two(__byte_perm(raised, 0, 0x4140), kTwoUnits, kMinus128);
    second = fma_two(__byte_perm(raised, 0, 0x4342), kTwoUnits, kMinus128);
  }
  __device__ static uint4 slab(const Held& held, int slab) {
    uint4 values;
    widen(slab == 0 ? held.q.x : held.q.z, values.x, values.y);
    widen(slab == 0 ? held.q.y : held.q.w, values.z, values.w);
    return values;
  }
  __device__ static float scale(const Held& held) { return widen_bf16(held.scale) / kUnit; }

  __device__ static int weight_place(int, int c) { return c; }
  __device__ static int x_place(int r, int c) { return c ^ r % 2; }
  __device__ static void read(Held& held, const char* rows, int r) {
    held.q = *reinterpret_cast<const uint4*>(rows + r * kBytes + 16 * lane_quad());
  }
  __device__ static uint4 read_x(const char* rows, int r, int slab) {
    return *reinterpret_cast<const uint4*>(rows + r * kRowBytes +
                                           16 * x_place(r, 2 * lane_quad() + slab));
  }
};

struct ExpertInt4 {
  static constexpr bool kScaled = true, kHasMinimum = true;
  static constexpr int kBytes = kGroup / 2;
  struct Held {
    uint2 q;
    uint32_t line;  // scale and minimum
  };
  const uint2* row;
  const uint32_t* lines;

  __device__ ExpertInt4(const Matrix& W, int64_t n)
      : row(static_cast<const uint2*>(W.data) + n * packed_groups(W.K) * 4),
        lines(static_cast<const uint32_t*>(W.scales) + n * packed_groups(W.K)) {}
  __device__ static int column(int i) { return 16 * i + 4 * lane_quad(); }
  __device__ void load(Held& held, int group) const {
    held.q = __ldg(row + group * 4 + lane_quad());
    load_scale(held, group);
  }
  __device__ void load_scale(Held& held, int group) const { held.line = __ldg(lines + group); }
  // The i-th four bits of two words become bf16, exactly, of kUnit.
  __device__ static uint32_t widen(uint32_t words, int i) {
    const uint32_t two = words >> i / 2 * 8;
    return i % 2 == 0 ? fma_two(two & 0x000f000fu, kTwoUnits, 0)
                      : fma_two(two & 0x00f000f0u, kTwoSixteenths, 0);
  }
  __device__ static uint4 slab(const Held& held, int slab) {
    return {widen(held.q.x, 2 * slab), widen(held.q.y, 2 * slab), widen(held.q.x, 2 * slab + 1),
            widen(held.q.y, 2 * slab + 1)};
  }
  __device__ static float scale(const Held& held) {
    return widen_bf16(static_cast<uint16_t>(held.line & 0xffff)) / kUnit;
  }
  __device__ static float minimum(const Held& held) {
    return widen_bf16(static_cast<uint16_t>(held.line >> 16));
  }

  __device__ static int weight_place(int, int c) { return c; }
  __device__ static int x_place(int r, int c) { return c ^ r % 4 * 2; }
  __device__ static void read(Held& held, const char* rows, int r) {
    held.q = *reinterpret_cast<const uint2*>(rows + r * kBytes + 8 * lane_quad());
  }
  __device__ static uint4 read_x(const char* rows, int r, int slab) {
    uint2 fours[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int k = column(2 * slab + i);
      fours[i] = *reinterpret_cast<const uint2*>(rows + r * kRowBytes + 16 * x_place(r, k / 8) +
                                                 k % 8 * 2);
    }
    return {fours[0].x, fours[0].y, fours[1].x, fours[1].y};
  }
};

}  // namespace recurve::cuda::sm80
