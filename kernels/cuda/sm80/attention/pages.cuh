#pragma once
#include <cstdint>

#include "kernels/ops/paged_attention.h"

// Pages of keys and values in the memory of a device, whose tables are trusted.
namespace recurve::cuda::sm80 {

__device__ inline int32_t page_of(const PagedData& paged, int32_t slot, int64_t index) {
  return paged.table[static_cast<int64_t>(slot) * paged.most + index];
}

template <typename T>
__device__ T* page_at(const PagedData& paged, int32_t page) {
  return reinterpret_cast<T*>(static_cast<char*>(paged.data) + page * paged.page_bytes);
}

// The last sequence that begins at the row or before it.
__device__ inline int sequence_of(const Ragged& seqs, int64_t row) {
  if (seqs.rows == seqs.num_seqs) return static_cast<int>(row);
  int low = 0, high = seqs.num_seqs;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (seqs.begin[middle] <= row ? low : high) = middle;
  }
  return low;
}

}  // namespace recurve::cuda::sm80
