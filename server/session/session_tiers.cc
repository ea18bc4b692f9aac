// Where the states of sessions lie: in slots, in host memory, on the disk, and on their ways.
#include <algorithm>
#include <utility>

#include "kernels/check.h"
#include "server/session/session_change.h"

namespace recurve {
namespace {

// States are written ahead of need where sessions reserve more than this part of the memory.
constexpr bool is_short(int64_t reserved, int64_t all) { return reserved > all - all / 8; }

}  // namespace

StateSlot SessionStore::check_out(Session& session, StateImage begin) {
  const Change change(*this, session);
  CHECK(session.tier() != Tier::kDisk);
  std::optional<StateSlot> slot = take_slot(session);
  if (!slot) {
    const StateImage image = session.at.image ? session.at.image : std::move(begin);
    slot = image ? pool_.acquire_unset() : pool_.acquire();
    CHECK(slot);
    if (image) pool_.load(image, *slot);
  }
  session.at.image.reset();  // which is not what it will be
  if (!session.durable()) session.at.stored.reset();
  session.spill = 0;
  session.running = true;
  return std::move(*slot);
}

void SessionStore::check_in(Session& session, StateSlot slot, Snapshot at, Clock::time_point now) {
  CHECK(!session.durable());
  const Change change(*this, session);
  session.at = std::move(at);
  session.at.history.end_request();
  session.slot.emplace(std::move(slot));
  in_slots_.push_back(&session);
  session.busy = session.running = false;
  session.last_used = now;
  ++session.epoch;
}

bool SessionStore::evict_one() {
  Session* oldest = nullptr;
  const auto rank = [](const Session& s) { return std::pair(s.busy, s.last_used); };
  for (Session* session : in_slots_) {
    if (oldest == nullptr || rank(*session) < rank(*oldest)) oldest = session;
  }
  if (oldest == nullptr) return false;
  leave_slot(*oldest);
  return true;
}

void SessionStore::leave_slot(Session& session) {
  image_of(session);
  const Change change(*this, session);
  take_slot(session);
}

StateImage SessionStore::save(const StateSlot& slot) {
  const NewImage made = images_.take();
  pool_.save(slot, made, [this, rooms = made.rooms] { images_.prepare(rooms); });
  return made.image;
}

SessionStore::Leave SessionStore::leave_of(const Session& session) const {
  const Tier tier = session.tier();
  const bool here = tier == Tier::kSlot || tier == Tier::kHost;
  if (archive_ == nullptr || !here || session.busy || session.running) return kNot;
  if (session.at.stored) return kAtOnce;
  return session.durable() || session.spill > 0 ? kNot : kOnceWritten;
}

// Room for so many bytes more, if need be that of sessions that were idle longest.
SessionStore::Room SessionStore::make_room(int64_t bytes, For purpose) {
  while (reserved_ + bytes > limits_.host_bytes) {
    const bool waits = spilling_ > 0 || (purpose == For::kReturn && busy_ > 0);
    if (by_use_.empty()) return Room::kNone;
    const auto& [leave, when, session] = *by_use_.begin();
    if (leave == kAtOnce) {
      drop(*session);
      continue;
    }
    if (leave == kNot || spilling_ > 0 || !has_disk(purpose)) {
      return waits ? Room::kComing : Room::kNone;
    }
    spill(*session);
    return Room::kComing;
  }
  return Room::kThere;
}

// Whether a state more may move to the disk.
bool SessionStore::has_disk(For purpose) const {
  return moved_ + (purpose == For::kNew ? 1 : 0) < disk_places(0);
}

// It is on the disk.
void SessionStore::drop(Session& session) {
  const Change change(*this, session);
  take_slot(session);
  images_.keep_spare(true);  // whoever it goes for takes its room
  session.at.image.reset();
  session.at.history = {};
}

// Writes the state, to be dropped when memory is wanted. Where the disk takes no more, the session
// is passed over from then on, until it has been used again.
void SessionStore::spill(Session& session) {
  if (session.slot) leave_slot(session);
  StateStore::NewState state{header_of(session.at), session.at.image};
  state.header.id = archive_->store().new_id();
  {
    const Change change(*this, session);
    session.spill = ++spills_;
  }
  ++spilling_;
  const Key key{session.tenant, std::string(session.name)};
  const uint64_t number = session.spill;
  write({.tenant = std::string(session.tenant_name), .state = std::move(state)},
        [this, key, number](const StateStore::Outcome& outcome) {
          --spilling_;
          Session* found = find(key.name, key.tenant);
          if (found == nullptr || found->spill != number) return;
          const Change change(*this, *found);
          found->at.stored = outcome.state;
          found->spill = outcome.error.empty() ? 0 : Session::kNoSpill;
        });
}

SessionStore::Room SessionStore::bring(Session& session, OnBrought done) {
  if (session.tier() != Tier::kDisk) return Room::kThere;
  const Room room = make_room(state_memory_, For::kReturn);
  if (room != Room::kThere) return room;
  const NewImage made = images_.take();
  {
    const Change change(*this, session);
    session.loading = session.busy = true;
  }
  const auto prepare = [this, rooms = made.rooms] { images_.prepare(rooms); };
  archive_->load(
      session.at.stored, wanted_, made, prepare,
      [this, &session, image = made.image, done = std::move(done)](Archive::Loaded loaded) {
        {
          const Change change(*this, session);
          session.loading = session.busy = false;
          session.state_lost = loaded.reason == EndReason::kStateLost;
          if (loaded.error.empty()) {
            session.at.image = image;
            session.at.history = TokenHistory::of(std::move(loaded.header.history));
          }
        }
        if (session.state_lost && limits_.on_state_lost) {
          limits_.on_state_lost(session.tenant_name, session.name, loaded.error);
        }
        done(loaded);
      });
  return Room::kComing;
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
  if (spilling_ == 0 && is_short(reserved_, limits_.host_bytes) && !by_use_.empty()) {
    const auto& [leave, when, session] = *by_use_.begin();
    if (leave == kOnceWritten && has_disk(For::kNew)) spill(*session);
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
          .in_slot = in_slot_,
          .in_host = in_host_,
          .on_disk = on_disk_,
          .empty = empty_,
          .host_bytes = images_.bytes(),
          .to_slot = to_slot_,
          .to_host = to_host_,
          .to_disk = to_disk_};
}

void SessionStore::count_move(Tier to) {
  to_slot_ += to == Tier::kSlot;
  to_host_ += to == Tier::kHost;
  to_disk_ += to == Tier::kDisk;
}

int& SessionStore::count_of(const Session& session) {
  switch (session.tier()) {
    case Tier::kSlot:
      return in_slot_;
    case Tier::kHost:
      return in_host_;
    case Tier::kDisk:
      return on_disk_;
    case Tier::kEmpty:
      break;
  }
  return empty_;
}

}  // namespace recurve
