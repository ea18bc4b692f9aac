#pragma once
#include "kernels/cuda/sm90/bulk.cuh"
#include "kernels/cuda/sm90/linear/linear_ahead.cuh"

// The end of a wide tile where that is nothing out of the ordinary.
namespace recurve::cuda::sm90 {

template <typename T>
__device__ void sync_computing() {
  asm volatile("bar.sync 1, %0;" ::"n"(T::kComputing) : "memory");
}

// Whether the sums are scaled as they go to shared memory: where nothing is added to them there.
template <typename T>
__device__ bool scales_first(const LinearParams& params) {
  return T::kWide && params.parts == 1;
}

// Whether the outputs go where the copy engine can write them, and are added to what is there if
// there is a residual: the L2 cache adds, each output once. (It makes zeros of numbers below
// 2^-126.)
template <typename T>
__device__ bool copies_out(const LinearParams& params) {
  return T::kWide && params.vector && !params.swiglu && params.y_bf16 == nullptr &&
         (params.residual == nullptr || params.residual == params.y);
}

// What is done to sums before, in place. The other blocks of the tile read other columns.
template <typename T, int kParts>
__device__ void change_sums(const LinearParams& params, const BlockCoord& block,
                            const Shared<T>& shared, const Ahead<T>& ahead) {
  const OutputSlice& slice = ahead.slice;
  if (slice.count == 0) return;
#pragma unroll 4
  for (int row = slice.begin; row < slice.rows; row += slice.step) {
    float* at = &shared.sums()[row][slice.m];
    float4 y = sum_of_parts<kParts>(at, block.first_rank);
    if (params.scaled() && kParts > 1) y = y * shared.scales[row];
    y = y + ahead.bias;
    if (params.soft_cap > 0) y = soft_cap(y, params.soft_cap);
    *reinterpret_cast<float4*>(at) = y;
  }
}

// Whether the outputs are gated and go out in bf16: then they are half of the columns, and the
// threads write them.
template <typename T>
__device__ bool gates_out(const LinearParams& params) {
  return T::kWide && params.vector && params.swiglu && params.y_bf16 != nullptr &&
         params.residual == nullptr && params.soft_cap == 0;
}
template <typename T, int kParts>
__device__ void gate_out(const LinearParams& params, const BlockCoord& block,
                         const Shared<T>& shared, const Ahead<T>& ahead) {
  const OutputSlice& slice = ahead.slice;
  if (slice.count == 0) return;
  uint16_t* to = params.y_bf16 + static_cast<int64_t>(block.x_row) * params.outputs + slice.output;
#pragma unroll 2
  for (int row = slice.begin; row < slice.rows; row += slice.step) {
    const float* at = &shared.sums()[row][slice.m];
    float4 gate = sum_of_parts<kParts>(at, block.first_rank);
    float4 up = sum_of_parts<kParts>(at + params.box_rows, block.first_rank);
    if (params.scaled() && kParts > 1) {
      gate = gate * shared.scales[row];
      up = up * shared.scales[row];
    }
    store4_bf16(to + static_cast<int64_t>(row) * params.outputs,
                swish(gate + ahead.bias, up + ahead.up_bias), 4, true);
  }
}

// A thread a row.
template <typename T>
__device__ void copy_out(const LinearParams& params, const BlockCoord& block,
                         const Shared<T>& shared, const Ahead<T>& ahead) {
  if (params.parts > 1) {
    change_sums<T, 2>(params, block, shared, ahead);
  } else if (params.bias != nullptr || params.soft_cap > 0) {
    change_sums<T, 1>(params, block, shared, ahead);
  }
  show_to_copies();
  sync_computing<T>();
  const int row = threadIdx.x;
  const Fours fours = fours_of(params, block);
  const int first = 4 * fours.first;
  const int there = min(4 * fours.count, params.outputs - block.W_row - first);
  if (row >= rows_of(params, block) || there <= 0) return;
  float* to =
      params.y + static_cast<int64_t>(block.x_row + row) * params.outputs + block.W_row + first;
  const float* from = &shared.sums()[row][first];
  const int bytes = there * static_cast<int>(sizeof(float));
  if (params.residual != nullptr) {
    bulk_add(to, from, bytes);
  } else {
    bulk_store(to, from, bytes);
  }
  commit_stores();
  wait_for_stores();
}

}  // namespace recurve::cuda::sm90
