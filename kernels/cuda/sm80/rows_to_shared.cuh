#pragma once
#include <cstdint>

#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/sm80/matrix/matrix_chunk.h"

// Rows of heads on their way to shared memory.
namespace recurve::cuda::sm80 {

// `bytes` of them, of 4 kFloats; the rest of these are zeros.
template <int kFloats>
__device__ void copy_async(float* to, const float* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from), "n"(4 * kFloats), "r"(bytes)
               : "memory");
}

// `rows` of kRows rows, and `columns` of `width` columns; zeros elsewhere. A warp has a row.
template <int kRows, int kFloats, int kWarps>
__device__ void copy_rows(float* to, int pitch, int width, const float* from, int64_t stride,
                          int rows, int columns) {
  const int lane = threadIdx.x % kWarpSize;
#pragma unroll
  for (int t = threadIdx.x / kWarpSize; t < kRows; t += kWarps) {
    for (int c = kFloats * lane; c < width; c += kFloats * kWarpSize) {
      const int there = t < rows ? max(0, min(kFloats, columns - c)) : 0;
      copy_async<kFloats>(to + t * pitch + c, there > 0 ? from + t * stride + c : from, 4 * there);
    }
  }
}

// Where a head's row begins.
__device__ inline const float* row_at(const RowsOfHeads& rows, int64_t row, int head) {
  return rows.data + row * rows.stride + static_cast<int64_t>(head / rows.heads) * rows.width;
}

}  // namespace recurve::cuda::sm80
