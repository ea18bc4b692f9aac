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

// Masks that have been worked out, for whatever answer comes to the same place: as many as fit, in
// fair shares of the clients whose answers they are. Any thread.
class MaskCache {
 public:
  // Of memory in all; 0: keeps nothing.
  explicit MaskCache(size_t most_bytes) : kept_(most_bytes) {}

  // Copies the mask of this place. False: none of as many words is here.
  bool find(std::string_view place, uint64_t client, std::span<uint32_t> mask);
  void keep(std::string place, uint64_t client, std::span<const uint32_t> mask);

  size_t bytes() const;

 private:
  using Mask = std::shared_ptr<const std::vector<uint32_t>>;

  mutable std::mutex mutex_;
  FairCache<std::string, Mask> kept_;
};

}  // namespace recurve
