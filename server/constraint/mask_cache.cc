#include "server/constraint/mask_cache.h"

#include <algorithm>
#include <utility>

namespace recurve {

bool MaskCache::find(std::string_view state, uint64_t client, std::span<uint32_t> mask) {
  Mask found;
  {
    std::lock_guard lock(mutex_);
    const Mask* const cached = masks_.find(state, client);
    if (cached == nullptr || (*cached)->size() != mask.size()) return false;
    found = *cached;
  }
  std::ranges::copy(*found, mask.begin());
  return true;
}

void MaskCache::put(std::string state, uint64_t client, std::span<const uint32_t> mask) {
  if (masks_.most_bytes() == 0) return;
  constexpr size_t kOverhead = 320;  // memory of lists and maps, about
  const size_t bytes = state.capacity() + mask.size_bytes() + kOverhead;
  auto copy = std::make_shared<const std::vector<uint32_t>>(mask.begin(), mask.end());
  std::lock_guard lock(mutex_);
  masks_.put(std::move(state), std::move(copy), bytes, client);
}

size_t MaskCache::bytes() const {
  std::lock_guard lock(mutex_);
  return masks_.bytes();
}

}  // namespace recurve
