#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/constraint/fair_cache.h"

namespace recurve {

// Computed masks, for all answers that reach the same state of a grammar, in fair shares of the
// clients of these answers. Any thread.
class MaskCache {
 public:
  // Most bytes of memory; 0: stores nothing.
  explicit MaskCache(size_t most_bytes) : masks_(most_bytes) {}

  // Copies the mask of this state. False: there is none of this size.
  bool find(std::string_view state, uint64_t client, std::span<uint32_t> mask);
  void put(std::string state, uint64_t client, std::span<const uint32_t> mask);

  size_t bytes() const;

 private:
  using Mask = std::shared_ptr<const std::vector<uint32_t>>;

  mutable std::mutex mutex_;
  FairCache<std::string, Mask> masks_;
};

}  // namespace recurve
