#include "server/prefix/prefix_cache.h"

#include <algorithm>
#include <new>
#include <utility>

namespace recurve {
namespace {

// To save a state and to load it again takes about as long as a device takes for a token of each
// so many bytes: what spares fewer tokens is not worth it.
constexpr int64_t kBytesAToken = int64_t{1} << 20;

PrefixIndex::Options index_options(size_t state_bytes, int chunk, const PrefixLimits& limits) {
  const auto bytes = static_cast<int64_t>(state_bytes);
  return {.bytes = limits.bytes,
          .state_bytes = static_cast<int64_t>(ImageMemory::bytes_each(state_bytes)),
          .chunk = chunk,
          .least_gain = std::max<int64_t>(chunk, bytes / kBytesAToken)};
}

}  // namespace

PrefixCache::PrefixCache(Backend& backend, StatePool& pool, int chunk, const PrefixLimits& limits)
    : pool_(pool),
      chunk_(chunk),
      limits_(limits),
      images_(backend, pool.layout().bytes()),
      index_(index_options(pool.layout().bytes(), chunk, limits)) {}

PrefixCache::~PrefixCache() { pool_.wait_for_copies(); }

int64_t PrefixCache::bytes_each(const StateLayout& layout, int chunk, int64_t tokens) {
  return static_cast<int64_t>(ImageMemory::bytes_each(layout.bytes())) +
         tokens / chunk * PrefixIndex::node_bytes(chunk);
}

PrefixCache::Start PrefixCache::start(TenantId tenant, std::span<const int32_t> ids,
                                      PrefixWish wish, const PrefixPlaces& places) {
  Start start;
  if (limits_.bytes == 0 || wish == PrefixWish::kOff) return start;
  PrefixUse& use = start.use;
  if (ids.size() <= static_cast<size_t>(chunk_)) {
    use.miss = PrefixMiss::kShort;
    return start;
  }
  PrefixIndex::Found found =
      index_.look(owner_of(tenant), ids, wish == PrefixWish::kUseAndKeep, places);
  use.tokens = found.tokens;
  use.lost = found.lost;
  use.replayed = found.seen - found.tokens - found.lost;
  use.miss = found.image != nullptr ? PrefixMiss::kNone
             : found.seen > 0       ? PrefixMiss::kNotKept
                                    : PrefixMiss::kNew;
  start.image = std::move(found.image);
  start.points = std::move(found.points);
  return start;
}

void PrefixCache::keep(TenantId tenant, std::span<const int32_t> ids, const StateSlot& slot) {
  const PrefixIndex::Owner owner = owner_of(tenant);
  try {
    if (!index_.make_room(owner, ids)) return;
    const std::shared_ptr<std::byte> image = images_.take();
    pool_.save(slot, image, [this, place = image.get()] { images_.prepare(place); });
    index_.keep(owner, ids, image);
  } catch (const std::bad_alloc&) {  // prompts are absorbed as they would be without it
  }
}

}  // namespace recurve
