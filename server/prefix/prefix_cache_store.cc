// PrefixCache: states in a store that several servers share.
#include <algorithm>
#include <new>
#include <utility>

#include "server/prefix/prefix_cache.h"

namespace recurve {
namespace {

// How long a prompt waits for the store as long as it is not known how fast prompts are absorbed.
constexpr std::chrono::seconds kFirstWait(2);

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

void PrefixCache::count_store(SharedPrefixUse use) const {
  if (limits_.on_store_use) limits_.on_store_use(use);
}

// A state that is of use should be in the store.
void PrefixCache::look_at_store(const PrefixScope& scope, std::span<const int32_t> ids,
                                const Start& start) {
  if (start.image == nullptr) return;
  const auto head = ids.first(static_cast<size_t>(start.use.tokens));
  const PrefixHash hash = stored_.hashes_of(head, scope.adapter_id().digest).back();
  if (limits_.store->has({name_of(scope.caller), hash})) return;
  index_.offer_again(PrefixIndex::To::kStore, owner_within(scope), head);
  may_share_ = true;
}

// hashes: of the ids. here: tokens that a state in memory has absorbed.
bool PrefixCache::fetch_from_store(const PrefixScope& scope, std::span<const int32_t> ids,
                                   std::span<const PrefixHash> hashes, int64_t here,
                                   double prompt_rate, std::function<void()> done) {
  const auto chunks_here = static_cast<size_t>(here / chunk_);
  if (hashes.size() <= chunks_here) return false;
  const SharedPrefixes::Found found = limits_.store->longest(name_of(scope.caller), hashes);
  if (found.chunks <= chunks_here) {
    count_store(SharedPrefixUse::kAbsent);
    return false;
  }
  const int64_t tokens = static_cast<int64_t>(found.chunks) * chunk_, gain = tokens - here;
  const double computing = prompt_rate > 0 ? static_cast<double>(gain) / prompt_rate : 0;
  const auto bytes = static_cast<int64_t>(pool_.layout().bytes(tokens));
  const bool faster =
      prompt_rate > 0 ? found.seconds < computing : gain >= least_gain_from_disk(bytes, chunk_);
  if (!faster) {
    count_store(SharedPrefixUse::kSlower);
    return false;
  }
  const PrefixIndex::Owner owner = owner_within(scope);
  const auto head = ids.first(static_cast<size_t>(tokens));
  if (joins_fetch(owner, head, &done)) return true;
  if (!index_.make_room(owner, head)) return false;
  const FetchPtr fetch = new_fetch(scope, head, hashes[found.chunks - 1], std::move(done));
  fetch->of_store = true;
  fetch->until = Clock::now() + (prompt_rate > 0 ? duration_of(computing) : kFirstWait);
  try {
    fetches_.reserve(fetches_.size() + 1);
    StateCache::Incoming coming = states_.expect(StateCache::Owner::kPrefixes, tokens);
    StateHeader wanted = written_;
    wanted.position = tokens;
    const bool reads = limits_.store->read(
        fetch->key, wanted, coming.image, std::move(coming.prepare),
        [this, fetch, image = coming.image.image](const auto& read) { came(fetch, read, image); });
    if (!reads) {
      count_store(SharedPrefixUse::kLate);
      return false;
    }
  } catch (const std::bad_alloc&) {
    return false;
  }
  fetches_.push_back(fetch);
  index_.expect(tokens);
  return true;
}

// What comes too late is of use for the prompts that come later.
void PrefixCache::came(const FetchPtr& fetch, const SharedPrefixes::Read& read,
                       const StateImage& image) {
  std::erase(fetches_, fetch);
  const auto tokens = static_cast<int64_t>(fetch->ids.size());
  index_.expect_no_more(tokens);
  const bool same = read.header.answer_ids == fetch->ids && read.header.position == tokens &&
                    read.header.adapter.digest == fetch->adapter.digest;
  const bool whole = read.error.empty() && !read.absent && same;
  if (whole && index_.make_room(fetch->owner, fetch->ids)) {
    index_.keep(fetch->owner, fetch->ids, image);
    written_owners_.try_emplace(fetch->owner, WrittenOwner{fetch->key.tenant, fetch->adapter});
    may_offer_ = true;  // to the disk
  }
  if (!whole && !read.absent && limits_.on_unreadable) {
    limits_.on_unreadable(read.error.empty() ? "it is of other ids or another adapter"
                                             : read.error);
  }
  const SharedPrefixUse use = whole         ? SharedPrefixUse::kHit
                              : read.absent ? SharedPrefixUse::kAbsent
                                            : SharedPrefixUse::kRefused;
  for (const auto& done : std::exchange(fetch->done, {})) {
    count_store(use);
    done();
  }
}

bool PrefixCache::advance(Clock::time_point now) {
  if (limits_.store == nullptr) return false;
  bool any = limits_.store->take_done();
  for (const FetchPtr& fetch : fetches_) {
    if (fetch->until > now) continue;
    fetch->until = Clock::time_point::max();
    for (const auto& done : std::exchange(fetch->done, {})) {
      count_store(SharedPrefixUse::kLate);
      done();
      any = true;
    }
  }
  share_next(now);
  return any;
}

std::optional<Clock::time_point> PrefixCache::next_advance() const {
  std::optional<Clock::time_point> next;
  const auto consider = [&](Clock::time_point when) {
    if (when < next.value_or(Clock::time_point::max())) next = when;
  };
  for (const FetchPtr& fetch : fetches_) consider(fetch->until);
  if (may_share()) consider(next_share_);
  return next;
}

bool PrefixCache::may_share() const {
  return limits_.store != nullptr && !sharing_ && may_share_ && pool_.copied(pool_.asked()) &&
         limits_.store->is_usable();
}

// What is worth most first.
void PrefixCache::share_next(Clock::time_point now) {
  while (may_share() && now >= next_share_) {
    PrefixIndex::Offer offer = index_.offer(PrefixIndex::To::kStore, 0);
    may_share_ = offer.image != nullptr;
    if (!may_share_) return;
    const SharedPrefixes::Key key = key_of(offer);
    if (limits_.store->has(key)) continue;
    StateHeader header = written_header(offer);
    sharing_ = limits_.store->write(
        key, std::move(header), std::move(offer.image),
        [this, owner = offer.owner, ids = std::move(offer.ids), began = now](bool written) {
          sharing_ = false;
          next_share_ = next_after(began, limits_.store_time);
          if (written) return;
          index_.offer_again(PrefixIndex::To::kStore, owner, ids);
          may_share_ = true;
        });
  }
}

}  // namespace recurve
