#pragma once
#include <algorithm>
#include <cstddef>

#include "kernels/kernels.h"

namespace recurve::cuda::sm80 {

// Keys that are attended to together, from a multiple of as many on.
constexpr int kRingSplit = 128;

// Heads that share keys and are taken at a time: at most.
constexpr int kRingHeads = 10;

// Channels of a head, at most: the queries of kRingHeads heads are in shared memory.
constexpr int kMostRingChannels = 1024;

// Splits that a window of W rows may touch.
__host__ __device__ constexpr int ring_splits(int W) {
  return (W + kRingSplit - 2) / kRingSplit + 1;
}

// Bytes that a row leaves for its splits to be put together: of each head the largest product, the
// sum of the weights and D sums of values.
inline size_t bytes_of_ring_row(const RingAttentionArgs& a) {
  return sizeof(float) * static_cast<size_t>(ring_splits(a.W)) * static_cast<size_t>(a.H) *
         static_cast<size_t>(a.D + 2);
}

}  // namespace recurve::cuda::sm80
