#include "server/constraint/mask_cache.h"

#include <algorithm>
#include <utility>

namespace recurve {

bool MaskCache::find(std::string_view place, uint64_t client, std::span<uint32_t> mask) {
  Mask found;
  {
    std::lock_guard lock(mutex_);
    const Mask* const kept = kept_.find(place, client);
    if (kept == nullptr || (*kept)->size() != mask.size()) return false;
    found = *kept;
  }
  std::ranges::copy(*found, mask.begin());
  return true;
}

void MaskCache::keep(std::string place, uint64_t client, std::span<const uint32_t> mask) {
  if (kept_.most_bytes() == 0) return;
  constexpr size_t kBeside = 320;  // what lists and maps take of the allocator, about
  const size_t bytes = place.capacity() + mask.size_bytes() + kBeside;
  auto copy = std::make_shared<const std::vector<uint32_t>>(mask.begin(), mask.end());
  std::lock_guard lock(mutex_);
  kept_.keep(std::move(place), std::move(copy), bytes, client);
}

size_t MaskCache::bytes() const {
  std::lock_guard lock(mutex_);
  return kept_.bytes();
}

}  // namespace recurve
