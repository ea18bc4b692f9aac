#include "server/prefix/prefix_cache.h"

#include <algorithm>
#include <new>
#include <utility>

#include "server/identity/tenants.h"
#include "server/prefix/prefix_records.h"

namespace recurve {
namespace {

// To save a state and to load it again takes about as long as a device takes for a token of each
// so many bytes: what spares fewer tokens is not worth it.
constexpr int64_t kBytesAToken = int64_t{1} << 20;
// What is read from a disk is checked, and copied once more: it has to spare more tokens.
constexpr int64_t kFarFactor = 4;
// What a written state takes in addition to its bytes and its ids, about.
constexpr int64_t kFrameBytes = 8 << 10;

PrefixIndex::Options index_options(const StateLayout& layout, int chunk,
                                   const PrefixLimits& limits) {
  const auto bytes = static_cast<int64_t>(layout.bytes());
  const auto memory = [&](int64_t tokens) {
    return static_cast<int64_t>(StateCache::bytes_each(layout, tokens));
  };
  return {.bytes = limits.bytes,
          .state_bytes = memory(0),
          .page_bytes = memory(1) - memory(0),
          .chunk = chunk,
          .least_gain = std::max<int64_t>(chunk, bytes / kBytesAToken),
          .least_offered_gain = PrefixCache::least_gain_from_disk(bytes, chunk)};
}

StateHeader header_of(StateHeader header, const StateLayout& layout) {
  header.layout = layout;
  return header;
}

}  // namespace

int64_t PrefixCache::least_gain_from_disk(int64_t state_bytes, int chunk) {
  return std::max<int64_t>(chunk, kFarFactor * state_bytes / kBytesAToken);
}

PrefixCache::PrefixCache(StateCache& states, StatePool& pool, int chunk, const PrefixLimits& limits,
                         PrefixDisk disk)
    : states_(states),
      pool_(pool),
      chunk_(chunk),
      limits_(limits),
      archive_(disk.archive),
      written_(header_of(std::move(disk.identity), pool.layout())),
      // All that decides the bits of a state, but the ids that it has absorbed.
      identity_(identity_text(written_) + disk.made_by),
      stored_(chunk, identity_, archive_ == nullptr ? nullptr : &archive_->store()),
      index_(index_options(pool.layout(), chunk, limits)) {
  const auto use_unreserved = [this] { index_.set_limit(states_.unreserved()); };
  states_.on_reserve(use_unreserved);
  use_unreserved();
  if (archive_ != nullptr) restore();
}

PrefixCache::~PrefixCache() {
  states_.on_reserve(nullptr);
  const auto fetching = [this](bool of_store) {
    return std::ranges::any_of(fetches_,
                               [=](const FetchPtr& fetch) { return fetch->of_store == of_store; });
  };
  while (writing_ || fetching(false)) {
    archive_->wait();
    archive_->take_done();
  }
  while (sharing_ || fetching(true)) {
    limits_.store->wait();
    limits_.store->take_done();
  }
}

int64_t PrefixCache::bytes_each(const StateLayout& layout, int chunk, int64_t tokens) {
  return static_cast<int64_t>(StateCache::bytes_each(layout, tokens)) +
         tokens / chunk * PrefixIndex::node_bytes(chunk);
}

std::string_view PrefixCache::name_of(const Identity& caller) const {
  return limits_.shared ? std::string_view() : caller.tenant_name;
}

std::string_view PrefixCache::lasting_name_of(const Identity& caller) const {
  const std::string_view name = name_of(caller);
  return name.empty() ? name : tenant_named(name).name;
}

PrefixIndex::Owner PrefixCache::owner_within(const PrefixScope& scope) {
  const PrefixIndex::Owner tenant = owner_of(scope.caller);
  std::string digest = scope.digest();
  if (digest.empty()) return tenant;
  const auto [at, is_new] = owners_.try_emplace({tenant, std::move(digest)});
  if (is_new) at->second = ~PrefixIndex::Owner{0} - owners_.size();
  return at->second;
}

// What servers before have left, those too that this one cannot use, which take room until it is
// wanted. What is no such record goes.
void PrefixCache::restore() {
  StateStore& store = archive_->store();
  store.for_each_record(kExpendable, [&](const StateStore::Record& record) {
    auto found = prefix_record_of(record, identity_, limits_.shared);
    if (found) {
      found->entry.bytes = static_cast<int64_t>(store.bytes_of(*found->entry.state));
      stored_.put(found->key, std::move(found->entry));
    } else {
      removed_.push_back(record.key);
    }
  });
}

PrefixCache::Start PrefixCache::start(const PrefixScope& scope, std::span<const int32_t> ids,
                                      PrefixMode mode, const PrefixPoints& places) {
  Start start;
  if (limits_.bytes == 0 || mode == PrefixMode::kOff) return start;
  PrefixUse& use = start.use;
  // Else a state behind it would take a page more than the index counts.
  if (pool_.layout().grows() && scope.position() % kPageTokens != 0) {
    use.miss = PrefixMiss::kContinues;
    return start;
  }
  if (ids.size() <= static_cast<size_t>(chunk_)) {
    use.miss = PrefixMiss::kShort;
    return start;
  }
  PrefixIndex::Found found =
      index_.look(owner_within(scope), ids, mode == PrefixMode::kUseAndStore, places);
  use.tokens = found.tokens;
  use.lost = found.lost;
  use.replayed = found.seen - found.tokens - found.lost;
  use.miss = found.image != nullptr ? PrefixMiss::kNone
             : found.seen > 0       ? PrefixMiss::kNotStored
                                    : PrefixMiss::kNew;
  start.image = std::move(found.image);
  start.points = std::move(found.points);
  if (!scope.may_be_written()) return start;
  if (limits_.store != nullptr) look_at_store(scope, ids, start);
  if (archive_ != nullptr) look_at_disk(scope, ids, &start);
  return start;
}

// What the prompt begins with gains by it on the disk too, or should be there. What is on the disk
// alone has not come.
void PrefixCache::look_at_disk(const PrefixScope& scope, std::span<const int32_t> ids,
                               Start* start) {
  const auto hashes = stored_.empty() ? std::vector<PrefixHash>() : hashes_of(scope, ids);
  const std::string_view tenant = name_of(scope.caller);
  PrefixUse& use = start->use;
  if (start->image != nullptr) {
    const size_t chunks = static_cast<size_t>(use.tokens / chunk_);
    const bool may_be = chunks <= hashes.size();
    if (!may_be || !stored_.use({tenant, hashes[chunks - 1]})) {
      index_.offer_again(PrefixIndex::To::kDisk, owner_within(scope),
                         ids.first(static_cast<size_t>(use.tokens)));
      may_offer_ = true;
    }
  }
  const int64_t more = stored_.longest_known(tenant, hashes) - use.tokens - use.lost;
  if (more <= 0) return;
  if (start->image == nullptr) use.miss = PrefixMiss::kOnDisk;
  use.lost += more;
  use.replayed = std::max<int64_t>(use.replayed - more, 0);
}

std::vector<PrefixHash> PrefixCache::hashes_of(const PrefixScope& scope,
                                               std::span<const int32_t> ids) const {
  if (ids.empty()) return {};
  // A prompt has something left to absorb.
  return stored_.hashes_of(ids.first(ids.size() - 1), scope.adapter_id().digest);
}

void PrefixCache::store(const PrefixScope& scope, std::span<const int32_t> ids,
                        const StateSlot& slot) {
  const PrefixIndex::Owner owner = owner_within(scope);
  write_next();  // first: what has to make room would be gone
  try {
    if (!index_.make_room(owner, ids)) return;
    const bool may_be_written = scope.may_be_written();
    if (may_be_written && !written_owners_.contains(owner)) {
      written_owners_[owner] = {lasting_name_of(scope.caller), scope.adapter_id()};
    }
    const auto tokens = static_cast<int64_t>(ids.size());
    PrefixIndex::Longest before = index_.longest(owner, ids);
    if (before.image == nullptr) before.image = scope.image;
    index_.keep(owner, ids,
                states_.save(StateCache::Owner::kPrefixes, slot, scope.position() + tokens,
                             before.image, scope.position() + before.tokens),
                {}, may_be_written);
    may_offer_ |= may_be_written;
    may_share_ |= may_be_written;
  } catch (const std::bad_alloc&) {  // prompts are absorbed as they would be without it
  }
}

bool PrefixCache::fetch(const PrefixScope& scope, std::span<const int32_t> ids, PrefixMode mode,
                        double prompt_rate, std::function<void()> done) {
  const bool nowhere = stored_.empty() && limits_.store == nullptr;
  if (nowhere || limits_.bytes == 0 || mode == PrefixMode::kOff) return false;
  if (!scope.may_be_written()) return false;
  const PrefixIndex::Owner owner = owner_within(scope);
  const int64_t here = index_.longest(owner, ids).tokens;
  const std::vector<PrefixHash> hashes = hashes_of(scope, ids);
  StoredPrefixes::Found found = stored_.longest(name_of(scope.caller), hashes);
  const auto bytes = static_cast<int64_t>(pool_.layout().bytes(found.tokens));
  if (found.tokens - here < least_gain_from_disk(bytes, chunk_)) {
    return limits_.store != nullptr &&
           fetch_from_store(scope, ids, hashes, here, prompt_rate, std::move(done));
  }
  const std::span<const int32_t> head = ids.first(static_cast<size_t>(found.tokens));
  if (joins_fetch(owner, head, &done)) return true;
  if (!index_.make_room(owner, head)) return false;
  const FetchPtr fetch = new_fetch(scope, head, found.hash, std::move(done));
  fetch->state = found.state;
  try {
    fetches_.reserve(fetches_.size() + 1);
    states_.read(StateCache::Owner::kPrefixes, found.state, written_, found.tokens,
                 [this, fetch](const auto& loaded, const StateImage& image) {
                   fetched(fetch, loaded, image);
                 });
  } catch (const std::bad_alloc&) {
    return false;
  }
  fetches_.push_back(fetch);
  index_.expect(found.tokens);
  return true;
}

// Whether the same is on its way; then done() is called with the others.
bool PrefixCache::joins_fetch(PrefixIndex::Owner owner, std::span<const int32_t> head,
                              std::function<void()>* done) {
  const auto same = std::ranges::find_if(fetches_, [&](const FetchPtr& fetch) {
    return fetch->owner == owner && std::ranges::equal(fetch->ids, head);
  });
  if (same == fetches_.end()) return false;
  (*same)->done.push_back(std::move(*done));
  return true;
}

PrefixCache::FetchPtr PrefixCache::new_fetch(const PrefixScope& scope,
                                             std::span<const int32_t> head, const PrefixHash& hash,
                                             std::function<void()> done) {
  const auto fetch = std::make_shared<Fetch>(
      Fetch{.owner = owner_within(scope), .ids = {head.begin(), head.end()}});
  fetch->adapter = scope.adapter_id();
  fetch->key = {lasting_name_of(scope.caller), hash};
  fetch->done.push_back(std::move(done));
  return fetch;
}

// What is lost for good, or is of other ids after all, is not looked for again. What cannot be read
// now, may be later.
void PrefixCache::fetched(const FetchPtr& fetch, const Archive::Loaded& loaded,
                          const StateImage& image) {
  std::erase(fetches_, fetch);
  index_.expect_no_more(static_cast<int64_t>(fetch->ids.size()));
  const bool others =
      loaded.error.empty() && (loaded.header.answer_ids != fetch->ids ||
                               loaded.header.adapter.digest != fetch->adapter.digest);
  if (others || !loaded.error.empty()) {
    if (limits_.on_unreadable)
      limits_.on_unreadable(others ? "it is of other ids or another adapter" : loaded.error);
    if (others || loaded.reason == EndReason::kStateLost) {
      stored_.cannot_be_read(fetch->key);
      removed_.push_back(prefix_record_key(fetch->key));
    }
  } else if (index_.make_room(fetch->owner, fetch->ids)) {
    index_.keep(fetch->owner, fetch->ids, image, fetch->state);
  }
  for (const auto& done : fetch->done) done();
}

void PrefixCache::use_disk(int64_t most_bytes) {
  if (archive_ == nullptr) return;
  most_disk_bytes_ = most_bytes;
  trim(most_stored(), most_bytes);
  index_.leave_room(stored_.memory());
  write_next();
  if (!removed_.empty()) archive_->commit(take_removals());
}

void PrefixCache::trim(int64_t most_states, int64_t most_bytes) {
  for (const StoredPrefixes::Key& key : stored_.trim(most_states, most_bytes)) {
    removed_.push_back(prefix_record_key(key));
  }
}

std::vector<Archive::Write> PrefixCache::take_removals() {
  std::vector<Archive::Write> writes;
  for (std::string& key : std::exchange(removed_, {})) {
    writes.push_back({{.key = std::move(key), .removes = true}, [](const auto&) {}});
  }
  return writes;
}

int64_t PrefixCache::most_stored() const {
  return limits_.bytes / 2 / StoredPrefixes::entry_bytes();
}

bool PrefixCache::may_write() const {
  return archive_ != nullptr && !writing_ && may_offer_ && pool_.copied(pool_.asked());
}

std::optional<Clock::time_point> PrefixCache::next_write() const {
  if (!may_write()) return std::nullopt;
  return next_write_;
}

// Where there is no room for more, only what is worth more than what has to go for it.
void PrefixCache::write_next() {
  while (may_write() && (index_.is_short() || Clock::now() >= next_write_)) {
    const int64_t bytes = static_cast<int64_t>(pool_.layout().bytes()) + kFrameBytes;
    const bool full =
        stored_.bytes() + bytes > most_disk_bytes_ || stored_.states() >= most_stored();
    may_offer_ = bytes <= most_disk_bytes_;
    if (!may_offer_) return;
    PrefixIndex::Offer offer =
        index_.offer(PrefixIndex::To::kDisk, full ? stored_.least_worth() : 0);
    may_offer_ = offer.image != nullptr;
    if (!may_offer_) return;
    const StoredPrefixes::Key key = key_of(offer);
    if (!stored_.has(key)) write(key, std::move(offer));
  }
}

StoredPrefixes::Key PrefixCache::key_of(const PrefixIndex::Offer& offer) const {
  const WrittenOwner& owner = written_owners_.at(offer.owner);
  return {owner.tenant, stored_.hashes_of(offer.ids, owner.adapter.digest).back()};
}

StateHeader PrefixCache::written_header(const PrefixIndex::Offer& offer) const {
  StateHeader header = written_;
  header.position = static_cast<int64_t>(offer.ids.size());
  header.answer_ids = offer.ids;
  header.adapter = written_owners_.at(offer.owner).adapter;
  return header;
}

// So long after a write it takes the share of the time that it may.
Clock::time_point PrefixCache::next_after(Clock::time_point began, double share) {
  const Clock::time_point ended = Clock::now();
  return ended + std::chrono::duration_cast<Clock::duration>((ended - began) * (1 / share - 1));
}

void PrefixCache::write(const StoredPrefixes::Key& key, PrefixIndex::Offer offer) {
  StateStore& store = archive_->store();
  const auto tokens = static_cast<int64_t>(offer.ids.size());
  if (offer.continues != nullptr && store.is_gone(*offer.continues)) offer.continues.reset();
  StateStore::NewState state{written_header(offer), std::move(offer.image),
                             std::move(offer.continues)};
  state.header.id = store.new_id();
  StoredPrefixes::Entry entry{.tokens = tokens, .gain = offer.gain, .hits = offer.hits};
  StateStore::Change change{.key = prefix_record_key(key),
                            .tenant = std::string(key.tenant),
                            .text = prefix_record_text(entry, identity_),
                            .states = {state.header.id},
                            .state = std::move(state)};
  const int64_t bytes = static_cast<int64_t>(store.bytes_to_write(change)) + kFrameBytes +
                        tokens * static_cast<int64_t>(sizeof(int32_t));
  if (bytes > most_disk_bytes_) return;
  trim(most_stored() - 1, most_disk_bytes_ - bytes);
  const auto written = [this, key, entry, owner = offer.owner, ids = std::move(offer.ids),
                        began = Clock::now()](const StateStore::Outcome& outcome) mutable {
    next_write_ = next_after(began, limits_.disk_time);
    writing_ = false;
    if (!outcome.error.empty()) return;
    entry.state = outcome.state;
    entry.bytes = static_cast<int64_t>(archive_->store().bytes_of(*outcome.state));
    index_.set_written(owner, ids, entry.state);
    stored_.put(key, std::move(entry));
  };
  writing_ = true;
  std::vector<Archive::Write> writes = take_removals();  // first: it may need their room
  writes.push_back({std::move(change), written});
  archive_->commit(std::move(writes));
}

PrefixCache::Counts PrefixCache::counts() const {
  return {index_.counts(), index_.limit(), stored_.states(), stored_.bytes()};
}

}  // namespace recurve
