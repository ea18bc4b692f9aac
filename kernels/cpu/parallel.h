#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/cpu/thread_pool.h"

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

}  // namespace recurve::cpu
