#include "server/constraint/mask_cache.h"

#include <algorithm>
#include <utility>

namespace recurve {

bool MaskCache::find(std::string_view place, std::span<uint32_t> mask) {
  std::shared_ptr<const std::vector<uint32_t>> found;
  {
    std::lock_guard lock(mutex_);
    const auto at = at_.find(place);
    if (at == at_.end() || at->second->mask->size() != mask.size()) return false;
    kept_.splice(kept_.begin(), kept_, at->second);
    found = at->second->mask;
  }
  std::ranges::copy(*found, mask.begin());
  return true;
}

void MaskCache::keep(std::string place, std::span<const uint32_t> mask) {
  if (most_bytes_ == 0) return;
  Kept one{std::move(place),
           std::make_shared<const std::vector<uint32_t>>(mask.begin(), mask.end())};
  std::lock_guard lock(mutex_);
  if (at_.contains(one.place)) return;  // another answer was there at the same time
  bytes_ += one.bytes();
  kept_.push_front(std::move(one));
  at_.emplace(kept_.front().place, kept_.begin());
  while (bytes_ > most_bytes_) {
    bytes_ -= kept_.back().bytes();
    at_.erase(kept_.back().place);
    kept_.pop_back();
  }
}

size_t MaskCache::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace recurve
