#pragma once
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace recurve {

// Masks that have been worked out, for whatever answer comes to the same place: those last used, as
// many as fit. Any thread.
class MaskCache {
 public:
  // Of memory in all; 0: keeps nothing.
  explicit MaskCache(size_t most_bytes) : most_bytes_(most_bytes) {}

  // Copies the mask of this place. False: none of as many words is here.
  bool find(std::string_view place, std::span<uint32_t> mask);
  void keep(std::string place, std::span<const uint32_t> mask);

  size_t bytes() const;

 private:
  struct Kept {
    std::string place;
    std::shared_ptr<const std::vector<uint32_t>> mask;
    // With what lists and tables take of the allocator.
    size_t bytes() const { return place.capacity() + mask->size() * sizeof(uint32_t) + 256; }
  };

  const size_t most_bytes_;
  mutable std::mutex mutex_;
  std::list<Kept> kept_;  // the last used first
  std::unordered_map<std::string_view, std::list<Kept>::iterator> at_;
  size_t bytes_ = 0;
};

}  // namespace recurve
