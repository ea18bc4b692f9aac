#pragma once
#include <cstdint>

#include "kernels/cuda/common/math.cuh"
#include "kernels/ops/sample_math.h"

// Selections from a row of ids by one block, without sorting it. All of them add up whole numbers,
// so that no result depends on the order in which threads come.
namespace recurve::cuda::sm80 {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarpSize;
constexpr float kMinusInfinity = -__builtin_inff();

constexpr int kDigitBits = 11;
constexpr int kBins = 1 << kDigitBits;

struct Shared {
  // A histogram: low and high halves of the weights, and how many there are.
  uint32_t low[kBins], high[kBins], count[kBins];
  uint64_t sums[kWarps];
  uint64_t rest;  // to be reached within the bin
  int bin;
  bool whole;  // all of the bin is needed
};

__device__ inline uint64_t block_sum(uint64_t value, Shared& shared) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  if (threadIdx.x % kWarpSize == 0) shared.sums[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  value = 0;
  for (int warp = 0; warp < kWarps; ++warp) value += shared.sums[warp];
  __syncthreads();  // before the next one
  return value;
}

// The high halves decide, then the low ones of those who have the greatest.
__device__ inline uint64_t warp_max(uint64_t value) {
  const uint32_t high = static_cast<uint32_t>(value >> 32);
  const uint32_t most = __reduce_max_sync(0xffffffffu, high);
  const uint32_t low = high == most ? static_cast<uint32_t>(value) : 0;
  return uint64_t{most} << 32 | __reduce_max_sync(0xffffffffu, low);
}
__device__ inline uint64_t block_max(uint64_t value, Shared& shared) {
  value = warp_max(value);
  if (threadIdx.x % kWarpSize == 0) shared.sums[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  static_assert(kWarps == kWarpSize);
  value = warp_max(shared.sums[threadIdx.x % kWarpSize]);
  __syncthreads();  // before the next one
  return value;
}

// How much of a total is wanted.
struct Fraction {
  double fraction;
  __device__ uint64_t operator()(uint64_t total) const { return share_of(fraction, total); }
};
struct TopCount {
  uint64_t count;
  __device__ uint64_t operator()(uint64_t total) const { return count < total ? count : total; }
};
struct Exactly {
  uint64_t value;
  __device__ uint64_t operator()(uint64_t) const { return value; }
};

// The first id at which the values of the ids [0, n), added up, reach what is wanted of their sum.
template <typename Value, typename Wanted>
__device__ int first_by_id(int n, Value value, Wanted wanted, Shared& shared) {
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  int begin = 0, end = n;
  uint64_t target = 0;
  for (bool first = true; first || end - begin > 1; first = false) {
    int piece = (end - begin + kWarps - 1) / kWarps;  // of each warp
    if (piece > kWarpSize) piece = (piece + kWarpSize - 1) / kWarpSize * kWarpSize;
    const int from = begin + warp * piece, to = from + piece < end ? from + piece : end;
    uint64_t sum = 0;
#pragma unroll 4
    for (int id = from + lane; id < to; id += kWarpSize) sum += value(id);
    for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    }
    if (lane == 0) shared.sums[warp] = sum;
    __syncthreads();
    if (first) {
      uint64_t total = 0;
      for (int w = 0; w < kWarps; ++w) total += shared.sums[w];
      target = wanted(total);
    }
    int at = 0;
    while (at < kWarps - 1 && shared.sums[at] < target) target -= shared.sums[at++];
    begin += at * piece;
    end = begin + piece < end ? begin + piece : end;
    __syncthreads();  // before the sums are written again
  }
  return begin;
}

// The first ids of an order: those whose place, without its lowest `shift` bits, is before `place`,
// and of those that are there, the ids up to `last`.
struct Cutoff {
  int shift;
  uint64_t place;
  int last;
  __device__ bool keeps(uint64_t other, int id) const {
    const uint64_t at = other >> shift;
    return at < place || (at == place && id <= last);
  }
};

// Adds to a histogram: 64 bits by atomic additions of 32, whose carries make up the high half.
__device__ inline void add_to_bin(Shared& shared, int bin, uint64_t value) {
  const uint32_t low = static_cast<uint32_t>(value);
  const uint32_t before = atomicAdd(&shared.low[bin], low);
  const uint32_t high = static_cast<uint32_t>(value >> 32) + (before + low < before ? 1 : 0);
  if (high != 0) atomicAdd(&shared.high[bin], high);
  atomicAdd(&shared.count[bin], 1u);
}

__device__ inline uint64_t bin_value(const Shared& shared, int bin) {
  return uint64_t{shared.high[bin]} << 32 | shared.low[bin];
}

// Finds the bin in which the target is reached. On the first digit the target is what is wanted of
// the total. Leaves bin, rest and whole in shared memory.
template <typename Wanted>
__device__ void find_bin(bool first, uint64_t target, Wanted wanted, Shared& shared) {
  constexpr int kEach = kBins / kThreads;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  uint64_t own = 0;
  for (int i = 0; i < kEach; ++i) {
    own += bin_value(shared, static_cast<int>(threadIdx.x) * kEach + i);
  }
  uint64_t sum = own;  // with those of lower lanes
  for (int offset = 1; offset < kWarpSize; offset *= 2) {
    const uint64_t other = __shfl_up_sync(0xffffffffu, sum, static_cast<unsigned>(offset));
    if (lane >= offset) sum += other;
  }
  if (lane == kWarpSize - 1) shared.sums[warp] = sum;
  __syncthreads();
  uint64_t before = sum - own, total = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += shared.sums[w];
    total += shared.sums[w];
  }
  if (first) target = wanted(total);
  if (before < target && target <= before + own) {
    for (int i = 0; i < kEach; ++i) {
      const int bin = static_cast<int>(threadIdx.x) * kEach + i;
      const uint64_t value = bin_value(shared, bin);
      if (target <= before + value) {
        shared.bin = bin;
        shared.rest = target - before;
        shared.whole = shared.count[bin] == 1 || shared.rest == value;
        break;
      }
      before += value;
    }
  }
  __syncthreads();
}

// The first ids in the order of `order(id, &place)`, which has `bits` bits, and of ids among
// equals, until their values reach what is wanted of the sum of all; order is false of ids that do
// not count. A radix selection, digit by digit from the highest: it ends as soon as a bin is not to
// be divided. What is wanted is at least 1, at most the sum.
template <typename Order, typename Value, typename Wanted>
__device__ Cutoff first_in_order(int n, int bits, Order order, Value value, Wanted wanted,
                                 Shared& shared) {
  Cutoff cutoff{.shift = bits, .place = 0, .last = n};
  uint64_t rest = 0;
  for (bool first = true; cutoff.shift > 0; first = false) {
    const int above = cutoff.shift;
    cutoff.shift = above > kDigitBits ? above - kDigitBits : 0;
    for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kThreads) {
      shared.low[bin] = shared.high[bin] = shared.count[bin] = 0;
    }
    __syncthreads();
    const uint64_t mask = (uint64_t{1} << (above - cutoff.shift)) - 1;
    for (int id = static_cast<int>(threadIdx.x); id < n; id += kThreads) {
      uint64_t place;
      if (!order(id, &place) || place >> above != cutoff.place) continue;
      const uint64_t weight = value(id);
      if (weight > 0) add_to_bin(shared, static_cast<int>(place >> cutoff.shift & mask), weight);
    }
    __syncthreads();
    find_bin(first, rest, wanted, shared);
    rest = shared.rest;
    const bool whole = shared.whole;
    cutoff.place = cutoff.place << (above - cutoff.shift) | static_cast<uint64_t>(shared.bin);
    __syncthreads();  // before the bins are written again
    if (whole) return cutoff;
  }
  const auto equals = [&](int id) {
    uint64_t place;
    return order(id, &place) && place == cutoff.place ? value(id) : uint64_t{0};
  };
  cutoff.last = first_by_id(n, equals, Exactly{rest}, shared);
  return cutoff;
}

}  // namespace recurve::cuda::sm80
