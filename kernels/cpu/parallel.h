#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/ceil_div.h"
#include "kernels/cpu/aligned_memory.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops/ragged.h"

namespace recurve::cpu {

// What a thread must find to do, in simple vector operations on floats, before waking it pays.
inline constexpr int64_t kGrain = 16 * 1024;

// Calls body(begin, end) for blocks of [0, count) on the threads, where `cost` is the work of one
// item in the unit of kGrain. The results must not depend on where the blocks begin.
template <typename Body>
void for_blocks(ThreadPool& pool, int64_t count, int64_t cost, const Body& body) {
  const int64_t worth = count * std::max<int64_t>(cost, 1) / kGrain;
  const int64_t most = pool.threads() == 1 ? 1 : int64_t{4} * pool.threads();
  const int64_t blocks = std::clamp<int64_t>(worth, 1, std::min(most, std::max<int64_t>(count, 1)));
  pool.parallel_for(
      blocks, [&](int64_t block) { body(count * block / blocks, count * (block + 1) / blocks); });
}

// Channels of a recurrence that a thread takes as a whole: a multiple of every vector, so that a
// channel is computed the same way however many threads there are.
inline constexpr int64_t kChannels = 64;

// Calls body(sequence, begin, end) for blocks of at most kChannels of the D channels of each
// sequence on the threads, where `cost` is the work of one channel of one row in the unit of
// kGrain.
template <typename Body>
void for_channels(ThreadPool& pool, const Ragged& seqs, int64_t D, int64_t cost, const Body& body) {
  if (seqs.num_seqs == 0) return;
  const int64_t strips = ceil_div(D, kChannels);
  const int64_t rows = ceil_div(seqs.rows, seqs.num_seqs);
  for_blocks(pool, seqs.num_seqs * strips, rows * kChannels * cost,
             [&](int64_t begin, int64_t end) {
               for (int64_t item = begin; item < end; ++item) {
                 const int64_t first = item % strips * kChannels;
                 body(item / strips, first, std::min(first + kChannels, D));
               }
             });
}

// Floats of this thread for the time of a kernel, with anything in them. They grow and are kept, so
// that no step after the first of its size allocates.
inline float* scratch(size_t floats) {
  static thread_local AlignedMemory memory;
  return memory.reserve<float>(static_cast<int64_t>(floats));
}

}  // namespace recurve::cpu
