// Where the states of sessions lie: in slots, in host memory, on the disk, and on their ways.
#include <algorithm>
#include <utility>

#include "kernels/check.h"
#include "server/session/session_store.h"

namespace recurve {
namespace {

// States are written ahead of need where sessions reserve more than this part of the memory.
constexpr bool is_short(int64_t reserved, int64_t all) { return reserved > all - all / 8; }

}  // namespace

StateSlot SessionStore::check_out(Session& session, StateImage begin, int64_t begin_tokens) {
  CHECK(session.tier() != Tier::kDisk);
  std::optional<StateSlot> slot = take_slot(session);
  if (!slot) {
    const StateImage image = session.at.image ? session.at.image : std::move(begin);
    slot = image ? pool_.acquire_unset() : pool_.acquire();
    CHECK(slot);
    if (image) {
      if (!session.at.image) set_base(session, image, begin_tokens);
      CHECK(pool_.reserve(*slot, session.base_tokens));
      pool_.load(image, *slot);
    }
  }
  session.at.image.reset();  // which is not what it will be
  if (!session.durable()) session.at.stored.reset();
  session.disk_refused = false;
  update(session, Residency::kRunning);
  return std::move(*slot);
}

void SessionStore::check_in(Session& session, std::optional<StateSlot> slot, Snapshot at,
                            Clock::time_point now) {
  CHECK(!session.durable());
  session.at = std::move(at);
  session.at.history.end_request();
  session.busy = false;
  session.last_used = now;
  ++session.epoch;
  if (slot) return put_in_slot(session, std::move(*slot));
  update(session, outside_slot(session.at));
}

// The pages behind its tokens, which a step was to fill that did not come, go back.
void SessionStore::put_in_slot(Session& session, StateSlot slot) {
  pool_.truncate(slot, session.at.position);
  session.slot.emplace(std::move(slot));
  in_slots_.push_back(&session);
  update(session, Residency::kSlot);
}

bool SessionStore::evict_one(const Session* except) {
  Session* oldest = nullptr;
  const auto rank = [](const Session& s) { return std::pair(s.busy, s.last_used); };
  for (Session* session : in_slots_) {
    if (session == except) continue;
    if (oldest == nullptr || rank(*session) < rank(*oldest)) oldest = session;
  }
  if (oldest == nullptr) return false;
  leave_slot(*oldest);
  return true;
}

void SessionStore::leave_slot(Session& session) {
  image_of(session);
  take_slot(session);
  update(session, Residency::kHost);
}

SessionStore::Leave SessionStore::leave_of(const Session& session) const {
  const bool rests = session.residency == Residency::kSlot || session.residency == Residency::kHost;
  if (archive_ == nullptr || !rests || session.busy) return kNot;
  if (session.at.stored) return kAtOnce;
  return session.durable() || session.disk_refused ? kNot : kOnceWritten;
}

// Room for so many bytes more, if need be that of sessions that were idle longest.
SessionStore::Room SessionStore::make_room(int64_t bytes, For purpose) {
  while (host_reserved() + bytes > limits_.host_bytes) {
    const bool waits = spilling_ || (purpose == For::kReturn && totals_.busy > 0);
    if (by_use_.empty()) return Room::kNone;
    const auto& [leave, when, session] = *by_use_.begin();
    if (leave == kAtOnce) {
      drop(*session);
      continue;
    }
    if (leave == kNot || spilling_ || !has_disk(purpose, *session)) {
      return waits ? Room::kComing : Room::kNone;
    }
    spill(*session);
    return Room::kComing;
  }
  cache_.reserve(host_reserved() + bytes);
  return Room::kThere;
}

// Whether a state more may move to the disk.
bool SessionStore::has_disk(For purpose, const Session& leaves) const {
  const int64_t more = purpose == For::kNew ? state_memory(leaves.at.position) : 0;
  return totals_.moved + more < disk_places(0) * state_memory_;
}

// It is on the disk.
void SessionStore::drop(Session& session) {
  take_slot(session);
  cache_.keep_spare(true);  // the state that it goes for takes its memory
  session.at.image.reset();
  session.at.history = {};
  update(session, Residency::kDisk);
}

// Writes the state, to be dropped when memory is wanted. Where the disk refuses it, the session is
// passed over from then on, until it has been used again. As one is written at a time, a session
// that is kSpilling when that is done is the one, and has the state that was written.
void SessionStore::spill(Session& session) {
  if (session.slot) leave_slot(session);
  StateStore::NewState state{header_of(session, session.at), session.at.image};
  state.header.id = archive_->store().new_id();
  update(session, Residency::kSpilling);
  spilling_ = true;
  const Key key{session.tenant, std::string(session.name)};
  write({.tenant = std::string(session.tenant_name), .state = std::move(state)},
        [this, key](const StateStore::Outcome& outcome) {
          spilling_ = false;
          Session* found = find(key.name, key.tenant);
          if (found == nullptr || found->residency != Residency::kSpilling) return;
          found->at.stored = outcome.state;
          found->disk_refused = !outcome.error.empty();
          update(*found, Residency::kHost);
        });
}

SessionStore::Room SessionStore::bring(Session& session, OnBrought done) {
  if (session.tier() != Tier::kDisk) return Room::kThere;
  const Room room = make_room(state_memory(session.at.position), For::kReturn);
  if (room != Room::kThere) return room;
  const auto came = [this, &session, done = std::move(done)](const Archive::Loaded& loaded,
                                                             const StateImage& image) {
    const auto finish = [this, &session, done, loaded, image] {
      session.busy = false;
      session.state_lost = loaded.reason == EndReason::kStateLost;
      if (image) {
        session.at.image = image;
        session.at.history = TokenHistory::of(loaded.header.history);
      }
      update(session, outside_slot(session.at));
      if (session.state_lost && limits_.on_state_lost) {
        limits_.on_state_lost(session.tenant_name, session.name, loaded.error);
      }
      done(loaded);
    };
    if (session.at.log.is_loaded()) return finish();
    load_tokens(session, finish, done);
  };
  cache_.read(StateCache::Owner::kSessions, session.at.stored, wanted_, session.at.position, came);
  session.busy = true;
  update(session, Residency::kLoading);
  return Room::kComing;
}

// The tokens of a session that is being read. If they are damaged, it goes on without them. failed:
// called with an error that may pass, after which the session is as it was.
void SessionStore::load_tokens(Session& session, std::function<void()> done, OnBrought failed) {
  Snapshot& at = session.at;
  const auto came = [this, &session, done = std::move(done),
                     failed = std::move(failed)](Archive::Loaded loaded) {
    Snapshot& at = session.at;
    const bool whole = loaded.error.empty() && at.log.load(loaded.header.tokens);
    if (!whole && !loaded.error.empty() && loaded.reason != EndReason::kStateLost) {
      session.busy = false;
      update(session, outside_slot(at));
      return failed(loaded);
    }
    if (!whole) {
      at.log = TokenLog::unknown(at.log.most(), at.position);
      at.tokens.clear();
      if (limits_.on_tokens_lost) {
        limits_.on_tokens_lost(session.tenant_name, session.name,
                               loaded.error.empty() ? "they are others" : loaded.error);
      }
    }
    done();
  };
  archive_->load_tokens(at.tokens, at.log.begin(), wanted_.vocab, came);
}

void SessionStore::write(StateStore::Change change, Archive::Committed done) {
  const Copier::Ticket ticket = change.state ? pool_.asked() : 0;
  saving_.push_back({ticket, {std::move(change), std::move(done)}});
}

void SessionStore::send_writes() {
  const auto waits = std::ranges::find_if(
      saving_, [this](const Saving& saving) { return !pool_.copied(saving.ticket); });
  std::vector<Archive::Write> writes;
  writes.reserve(static_cast<size_t>(waits - saving_.begin()));
  for (auto saving = saving_.begin(); saving != waits; ++saving) {
    writes.push_back(std::move(saving->write));
  }
  saving_.erase(saving_.begin(), waits);
  if (!writes.empty()) archive_->commit(std::move(writes));
}

bool SessionStore::advance() {
  bool any = std::exchange(has_ended_, false);
  while (!exporting_.empty() && pool_.copied(exporting_.front().ticket)) {
    Exporting ready = std::move(exporting_.front());
    exporting_.erase(exporting_.begin());
    ready.done(std::move(ready.result));
    any = true;
  }
  if (archive_ == nullptr) return any;
  any |= archive_->take_done();
  if (!spilling_ && is_short(host_reserved(), limits_.host_bytes) && !by_use_.empty()) {
    const auto& [leave, when, session] = *by_use_.begin();
    if (leave == kOnceWritten && has_disk(For::kNew, *session)) spill(*session);
  }
  const size_t before = saving_.size();
  send_writes();
  return any || saving_.size() < before;
}

void SessionStore::finish_work() {
  while (working()) {
    pool_.wait_for_copies();
    if (!advance()) archive_->wait();
  }
}

SessionStore::Counts SessionStore::counts() const {
  return {.total = static_cast<int>(sessions_.size()),
          .in_slot = totals_.in(Tier::kSlot),
          .in_host = totals_.in(Tier::kHost),
          .on_disk = totals_.in(Tier::kDisk),
          .empty = totals_.in(Tier::kEmpty),
          .internal = totals_.internal,
          .host_bytes = cache_.bytes(StateCache::Owner::kSessions),
          .to_slot = to_slot_,
          .to_host = to_host_,
          .to_disk = to_disk_};
}

}  // namespace recurve
