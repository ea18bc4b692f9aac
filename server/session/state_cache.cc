#include "server/session/state_cache.h"

#include <utility>

namespace recurve {

// An image, and where its bytes are counted.
struct StateCache::Held {
  Held(StateImage of, std::atomic<int64_t>& counted) : image(std::move(of)), bytes(counted) {
    for (const StatePiece& piece : *image) {
      if (piece.data != nullptr) size += static_cast<int64_t>(piece.bytes);
    }
    bytes += size;
  }
  ~Held() { bytes -= size; }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  const StateImage image;
  std::atomic<int64_t>& bytes;
  int64_t size = 0;
};

StateCache::StateCache(Backend& backend, StatePool& pool, int64_t budget, Archive* archive,
                       int64_t preempted)
    : pool_(pool),
      archive_(archive),
      memory_(backend, pool.layout()),
      budget_(budget),
      preempted_(preempted) {}

StateCache::~StateCache() { pool_.wait_for_copies(); }

size_t StateCache::bytes_each(const StateLayout& layout, int64_t tokens) {
  constexpr size_t kShared = 32;  // a shared pointer's own, with what the heap adds
  return ImageMemory::bytes_each(layout, tokens) + sizeof(Held) + kShared;
}

void StateCache::reserve(int64_t bytes) noexcept {
  if (std::exchange(reserved_, bytes) != bytes && on_reserve_) on_reserve_();
}

// So many bytes more.
void StateCache::expect_preempted(size_t bytes) noexcept {
  const int64_t all = bytes_[static_cast<size_t>(Owner::kPreempted)] + static_cast<int64_t>(bytes);
  const int64_t excess = std::max<int64_t>(all - preempted_, 0);
  if (std::exchange(excess_, excess) != excess && on_reserve_) on_reserve_();
}

NewImage StateCache::take(Owner owner, int64_t tokens, const StateImage& before,
                          int64_t before_tokens) {
  NewImage made = memory_.take(tokens, before, before_tokens);
  const auto held = std::make_shared<Held>(made.image, bytes_[static_cast<size_t>(owner)]);
  made.image = StateImage(held, held->image.get());
  return made;
}

StateImage StateCache::save(Owner owner, const StateSlot& slot, int64_t tokens,
                            const StateImage& before, int64_t before_tokens) {
  if (owner == Owner::kPreempted) expect_preempted(pool_.layout().bytes(tokens));
  const NewImage made = take(owner, tokens, before, before_tokens);
  pool_.save(slot, made, [this, rooms = made.rooms] { memory_.prepare(rooms); });
  return made.image;
}

StateCache::Incoming StateCache::expect(Owner owner, int64_t tokens) {
  NewImage made = take(owner, tokens);
  return {made, [this, rooms = made.rooms] { memory_.prepare(rooms); }};
}

void StateCache::read(Owner owner, const StoredPtr& state, const StateHeader& wanted,
                      int64_t tokens, OnRead done) {
  const uint64_t id = state->id();
  if (const auto same = reading_.find(id); same != reading_.end()) {
    same->second.push_back(std::move(done));
    return;
  }
  const Incoming made = expect(owner, tokens);
  reading_[id].push_back(std::move(done));
  archive_->load(state, wanted, made.image, made.prepare,
                 [this, id, image = made.image.image](const Archive::Loaded& loaded) mutable {
                   const auto readers = reading_.extract(id);
                   if (!loaded.error.empty()) image = nullptr;
                   for (const OnRead& reader : readers.mapped()) reader(loaded, image);
                 });
}

}  // namespace recurve
