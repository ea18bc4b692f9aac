#pragma once
#include <cstdint>

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/copies.cuh"
#include "kernels/cuda/sm80/matrix/tile_chunk.h"

// Products of bf16 tiles on the tensor cores, out of shared memory. PTX ISA, mma.m16n8k16 and
// ldmatrix. With g = lane / 4 and q = lane % 4 a lane holds
//   of a (16, 16): (g, 2 q ..), (g + 8, 2 q ..), (g, 2 q + 8 ..), (g + 8, 2 q + 8 ..), two each
//   of b (16, 8):  (2 q .., g), (2 q + 8 .., g)
//   of d (16, 8):  (g, 2 q), (g, 2 q + 1), (g + 8, 2 q), (g + 8, 2 q + 1)
namespace recurve::cuda::sm80 {

// d += a b
__device__ inline void multiply_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                     uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ inline void load_matrices(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
__device__ inline void load_matrices_transposed(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

// A tile's swizzled matrix in shared memory, seen from a lane: it reads 16 rows by 16 columns at a
// time. Rows begin at multiples of 8, columns at multiples of 16, so what the swizzle does to a
// lane is the same everywhere.
template <int kWidth>
class TileMatrix {
 public:
  __device__ explicit TileMatrix(const uint16_t* values) {
    const int lane = threadIdx.x % kWarpSize;
    const int turn = kWidth >= 64 ? lane % 8 : lane % 8 / 2;
    const uint32_t begin = shared_address(values);
    left_ = begin + lane % 16 * kRow;
    left_turn_ = 16 * (lane / 16 ^ turn);
    right_ = begin + (lane % 8 + lane / 16 * 8) * kRow;
    right_turn_ = 16 * (lane / 8 % 2 ^ turn);
  }
  // a: rows from t0 on, columns from x0 on.
  __device__ void load_left(uint32_t (&a)[4], int t0, int x0) const {
    load_matrices(a, left_ + t0 * kRow + (2 * x0 ^ left_turn_));
  }
  // Two of b, {0, 1} and {2, 3}, where a row of the matrix is a column of b: rows from j0 and j0 +
  // 8 on, columns from x0 on.
  __device__ void load_right(uint32_t (&b)[4], int j0, int x0) const {
    load_matrices(b, right_ + j0 * kRow + (2 * x0 ^ right_turn_));
  }
  // Two of b, {0, 1} and {2, 3}, as the matrix lies: rows from j0 on, columns from x0 and x0 + 8
  // on.
  __device__ void load_right_as_it_lies(uint32_t (&b)[4], int j0, int x0) const {
    load_matrices_transposed(b, left_ + j0 * kRow + (2 * x0 ^ left_turn_));
  }

 private:
  static constexpr uint32_t kRow = sizeof(uint16_t) * kWidth;
  uint32_t left_, left_turn_, right_,
      right_turn_;  // shared addresses, and what they are xored with
};

// kBytes that lie side by side, a multiple of 16, by kThreads threads.
template <int kBytes, int kThreads>
__device__ void copy_all(void* to, const void* from) {
  constexpr int kTurn = 16 * kThreads, kTurns = kBytes / kTurn, kRest = kBytes % kTurn;
  const int mine = 16 * static_cast<int>(threadIdx.x);
  const uint32_t there = shared_address(to) + mine;
  const char* here = static_cast<const char*>(from) + mine;
#pragma unroll
  for (int i = 0; i < kTurns; ++i) copy_16_bytes(there + i * kTurn, here + i * kTurn);
  if (kRest > 0 && mine < kRest) copy_16_bytes(there + kTurns * kTurn, here + kTurns * kTurn);
}

// Values of a tile's rows: kColumns of a head from `column` on; zeros where there are no rows. The
// pitch of the rows leaves no two lanes of load_values() the same bank.
template <int kColumns>
constexpr int kValuePitch = kColumns + 4;
template <int kColumns, int kThreads>
__device__ void copy_values(float* to, const RowsOfHeads& v, const RowBlock& rows, int64_t column) {
  constexpr int kFours = kColumns / 4, kTurn = kThreads / kFours;  // rows at once
  static_assert(kThreads % kFours == 0 && kTileRows % kTurn == 0);
  const int first = static_cast<int>(threadIdx.x) / kFours, d = threadIdx.x % kFours * 4;
  const uint32_t there = shared_address(to + first * kValuePitch<kColumns> + d);
  const float* begin = v.data + static_cast<int64_t>(rows.first) * v.stride + column + d;
  const float* here = begin + static_cast<int64_t>(first) * v.stride;
  const int64_t step = static_cast<int64_t>(kTurn) * v.stride;
#pragma unroll
  for (int i = 0; i < kTileRows / kTurn; ++i, here += step) {
    const bool exists = first + i * kTurn < rows.L;
    copy_16_bytes(there + i * kTurn * kValuePitch<kColumns> * sizeof(float), exists ? here : begin,
                  exists ? 16 : 0);
  }
}

// The values of 16 rows from j0 on and 16 columns from d0 on: as products take them on their left
// where columns are rows, and {0, 2} and {1, 3} on their right where rows are rows. w: what rows
// are multiplied by, or null.
template <int kColumns>
__device__ void load_values(uint32_t (&to)[4], const float* v, int j0, int d0, const float* w) {
  constexpr int kPitch = kValuePitch<kColumns>;
  const int g = threadIdx.x % kWarpSize / 4, q = threadIdx.x % 4;
#pragma unroll
  for (int lower = 0; lower < 2; ++lower) {
    const int j = j0 + 2 * q + 8 * lower;
    const float2 weight =
        w != nullptr ? *reinterpret_cast<const float2*>(w + j) : make_float2(1, 1);
#pragma unroll
    for (int right = 0; right < 2; ++right) {
      const float* from = v + j * kPitch + d0 + g + 8 * right;
      to[2 * lower + right] = w != nullptr ? round_bf16(from[0] * weight.x, from[kPitch] * weight.y)
                                           : round_bf16(from[0], from[kPitch]);
    }
  }
}

// Rows [first, first + L) of tile `number` of a sequence: L is 0 behind the last one.
__device__ inline RowBlock tile_rows(const Ragged& seqs, int chunk, int sequence, int number) {
  return row_block<kTileRows>(seqs, chunk, sequence, number);
}

}  // namespace recurve::cuda::sm80
