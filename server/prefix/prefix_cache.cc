#include "server/prefix/prefix_cache.h"

#include <algorithm>
#include <new>
#include <utility>

namespace recurve {
namespace {

// To save a state and to load it again takes about as long as a device takes for a token of each
// so many bytes: what spares fewer tokens is not worth it.
constexpr int64_t kBytesAToken = int64_t{1} << 20;
// What is read from a disk is checked, and copied once more: it has to spare more tokens.
constexpr int64_t kFarFactor = 4;

PrefixIndex::Options index_options(const StateLayout& layout, int chunk,
                                   const PrefixLimits& limits) {
  const auto bytes = static_cast<int64_t>(layout.bytes());
  return {.bytes = limits.bytes,
          .state_bytes = static_cast<int64_t>(ImageMemory::bytes_each(layout)),
          .chunk = chunk,
          .least_gain = std::max<int64_t>(chunk, bytes / kBytesAToken),
          .least_far_gain = std::max<int64_t>(chunk, kFarFactor * bytes / kBytesAToken)};
}

}  // namespace

PrefixCache::PrefixCache(Backend& backend, StatePool& pool, int chunk, const PrefixLimits& limits,
                         PrefixDisk disk)
    : pool_(pool),
      chunk_(chunk),
      limits_(limits),
      archive_(disk.archive),
      written_(std::move(disk.identity)),
      images_(backend, pool.layout()),
      index_(index_options(pool.layout(), chunk, limits)) {
  written_.layout = pool.layout();
}

PrefixCache::~PrefixCache() {
  while (writing_ || !fetches_.empty()) {
    archive_->wait();
    archive_->take_done();
  }
  pool_.wait_for_copies();
}

int64_t PrefixCache::bytes_each(const StateLayout& layout, int chunk, int64_t tokens) {
  return static_cast<int64_t>(ImageMemory::bytes_each(layout)) +
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
  write_next();  // first: what has to make room would be gone
  try {
    if (!index_.make_room(owner, ids)) return;
    const NewImage made = images_.take();
    pool_.save(slot, made, [this, rooms = made.rooms] { images_.prepare(rooms); });
    index_.keep(owner, ids, made.image);
    may_leave_ = true;
  } catch (const std::bad_alloc&) {  // prompts are absorbed as they would be without it
  }
}

bool PrefixCache::fetch(TenantId tenant, std::span<const int32_t> ids, PrefixWish wish,
                        std::function<void()> done) {
  if (archive_ == nullptr || wish == PrefixWish::kOff) return false;
  const PrefixIndex::Owner owner = owner_of(tenant);
  const PrefixIndex::FoundFar found = index_.look_far(owner, ids);
  if (found.far == nullptr) return false;
  const std::span<const int32_t> head = ids.first(static_cast<size_t>(found.tokens));
  const auto same = std::ranges::find_if(fetches_, [&](const FetchPtr& fetch) {
    return fetch->owner == owner && std::ranges::equal(fetch->ids, head);
  });
  if (same != fetches_.end()) {
    (*same)->done.push_back(std::move(done));
    return true;
  }
  if (!index_.make_room(owner, head)) return false;
  const auto fetch = std::make_shared<Fetch>(Fetch{owner, {head.begin(), head.end()}});
  fetch->done.push_back(std::move(done));
  try {
    fetch->made = images_.take();
    fetches_.push_back(fetch);
  } catch (const std::bad_alloc&) {
    return false;
  }
  index_.expect(static_cast<int64_t>(fetches_.size()));
  archive_->load(
      std::static_pointer_cast<const StoredState>(found.far), written_, fetch->made,
      [this, rooms = fetch->made.rooms] { images_.prepare(rooms); },
      [this, fetch](const Archive::Loaded& loaded) { fetched(fetch, loaded); });
  return true;
}

// What cannot be read is absorbed, as if it had never been there.
void PrefixCache::fetched(const FetchPtr& fetch, const Archive::Loaded& loaded) {
  std::erase(fetches_, fetch);
  index_.expect(static_cast<int64_t>(fetches_.size()));
  if (!loaded.error.empty()) {
    index_.put_far(fetch->owner, fetch->ids, nullptr);
  } else if (index_.make_room(fetch->owner, fetch->ids)) {
    index_.keep(fetch->owner, fetch->ids, fetch->made.image);
    may_leave_ = true;
  }
  fetch->made = {};
  for (const auto& done : fetch->done) done();
}

void PrefixCache::use_disk(int64_t most_states) {
  if (archive_ == nullptr) return;
  index_.set_most_far(most_states);
  write_next();
}

void PrefixCache::write_next() {
  if (archive_ == nullptr || writing_ || !may_leave_ || !pool_.copied(pool_.asked())) return;
  PrefixIndex::Leaving leaving = index_.leaving();
  may_leave_ = leaving.image != nullptr;
  if (!may_leave_) return;
  StateStore::NewState state{written_, std::move(leaving.image)};
  state.header.id = archive_->store().new_id();
  state.header.position = static_cast<int64_t>(leaving.ids.size());
  writing_ = true;
  archive_->commit(
      {.state = std::move(state)},
      [this, owner = leaving.owner, ids = std::move(leaving.ids)](const auto& outcome) {
        writing_ = false;
        if (outcome.error.empty()) index_.put_far(owner, ids, outcome.state);
      });
}

}  // namespace recurve
