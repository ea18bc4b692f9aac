#include "server/session/session_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "kernels/check.h"

namespace recurve {
namespace {

// Of durable sessions' answers: so many ids are planned for on the disk.
constexpr int64_t kPlannedAnswer = 4096;
// Closed in one go: the engine has other things to do between two steps.
constexpr int kMostExpired = 256;

// What the heap takes for so many bytes: one word more, in steps of 16, 32 at least.
constexpr int64_t heap_bytes(size_t bytes) {
  return bytes == 0 ? 0 : static_cast<int64_t>(std::max<size_t>(32, (bytes + 8 + 15) / 16 * 16));
}
// A string of up to so many bytes lies in the object itself.
constexpr size_t kShortString = 15;
int64_t name_bytes(size_t length) { return length > kShortString ? heap_bytes(length + 1) : 0; }

// Bytes of a node of std::map and std::set but its value: colour, parent, left and right.
constexpr size_t kNodeBytes = 32;

// What goes with a state that leaves host memory.
int64_t memory_of_state(const StateLayout& layout, int32_t vocab) {
  return static_cast<int64_t>(StateCache::bytes_each(layout)) +
         heap_bytes(TokenHistory::most_bytes(vocab));
}
int64_t memory_of_page(const StateLayout& layout) {
  return static_cast<int64_t>(StateCache::bytes_each(layout, 1) - StateCache::bytes_each(layout));
}

// The parts that so many tokens are in at most, each half as large as the one before: see
// new_tokens(). The first may have as many again that are not stored any more.
constexpr int64_t most_parts(int64_t log) {
  return log == 0 ? 0 : std::bit_width(static_cast<uint64_t>(2 * log));
}

int64_t page_bytes_of(const StateLayout& layout, int64_t tokens) {
  return static_cast<int64_t>(layout.bytes(tokens) - layout.bytes());
}

// What the header of a written state says of a page.
constexpr int64_t kDescribedPage = 128;

StateHeader wanted_of(StateHeader identity, const StateLayout& layout, int32_t vocab) {
  identity.layout = layout;
  identity.vocab = vocab;
  return identity;
}

}  // namespace

SessionStore::SessionStore(StateCache& cache, StatePool& pool, const SessionLimits& limits,
                           int32_t vocab)
    : cache_(cache),
      pool_(pool),
      limits_(limits),
      wanted_(wanted_of(limits.identity, pool.layout(), vocab)),
      bytes_each_(bytes_each(pool.layout(), vocab)),
      state_memory_(memory_of_state(pool.layout(), vocab)),
      page_memory_(memory_of_page(pool.layout())),
      disk_each_(2 *
                 static_cast<int64_t>(most_written_bytes(pool.layout(), vocab, kPlannedAnswer))),
      disk_page_(pool.layout().grows()
                     ? 2 * (static_cast<int64_t>(pool.layout().page_bytes()) + kDescribedPage)
                     : 0),
      archive_(limits.archive),
      model_(StoredModel::of(wanted_, limits.model_name)),
      largest_state_(state_memory_) {
  in_slots_.reserve(static_cast<size_t>(pool.slots()));
}

// Durable sessions are back with the model.
SessionStore::~SessionStore() {
  finish_work();
  for (const auto& [key, session] : sessions_) {
    if (session.claim && session.durable()) limits_.names->retain(key.tenant, key.name);
  }
}

int64_t SessionStore::bytes_each(const StateLayout& layout, int32_t vocab) {
  constexpr int64_t kSessionBytes =
      heap_bytes(kNodeBytes + sizeof(decltype(sessions_)::value_type)) +
      heap_bytes(kNodeBytes + sizeof(ByExpiry::value_type)) +
      heap_bytes(kNodeBytes + sizeof(ByUse::value_type));
  return kSessionBytes + memory_of_state(layout, vocab);
}

SessionNames::Claim SessionStore::claim(const Key& key) const {
  if (limits_.names == nullptr) return nullptr;
  return limits_.names->claim(key.tenant, key.name, limits_.model_name);
}

// The session of that key, of which there is none yet.
Session& SessionStore::put(Key key, const std::string& parent, Snapshot at, double ttl_seconds,
                           Clock::time_point now) {
  const auto place = sessions_.try_emplace(std::move(key)).first;
  Session& session = place->second;
  session.tenant = place->first.tenant;
  session.name = place->first.name;
  session.at = std::move(at);
  session.ttl_seconds = ttl_seconds;
  session.last_used = now;
  try {
    session.parent = parent;
    if (ttl_seconds > 0) by_expiry_.emplace(session.expires, &session);
    by_use_.emplace(session.leave, session.used_at, &session);
  } catch (...) {
    by_expiry_.erase({session.expires, &session});
    sessions_.erase(place);
    throw;
  }
  update(session, outside_slot(session.at));
  return session;
}

// To be called after each change of the session: the totals and orders follow it.
void SessionStore::update(Session& session, Residency residency) {
  const SessionShare before = session.share;
  session.residency = residency;
  if (!session.busy) session.planned_position = 0;
  if (session.at.image) set_base(session, session.at.image, session.at.position);
  if (residency == Residency::kEmpty) session.base.reset();
  session.share = share_of(session);
  largest_state_ = std::max(largest_state_, state_memory(final_position(session)));
  totals_.add(before, -1);
  totals_.add(session.share, 1);
  has_ended_ |= before.busy && !session.busy;
  const Tier tier = session.tier();
  if (before.sessions > 0 && tier != tier_of(before.residency)) {
    to_slot_ += tier == Tier::kSlot;
    to_host_ += tier == Tier::kHost;
    to_disk_ += tier == Tier::kDisk;
  }
  sort(session);
  reserve_memory();
}

// Where it belongs now in the orders. Nothing in it can fail.
void SessionStore::sort(Session& session) {
  auto expiry = by_expiry_.extract({session.expires, &session});
  auto use = by_use_.extract({session.leave, session.used_at, &session});
  const bool stays = session.ttl_seconds == 0 || session.busy;
  session.expires =
      stays ? Clock::time_point::max()
            : session.last_used + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(session.ttl_seconds));
  session.leave = leave_of(session);
  session.used_at = session.last_used;
  if (!expiry.empty()) {  // else it never expires
    expiry.value() = {session.expires, &session};
    by_expiry_.insert(std::move(expiry));
  }
  use.value() = {session.leave, session.used_at, &session};
  by_use_.insert(std::move(use));
}

Session* SessionStore::find(const std::string& name, TenantId tenant) {
  const auto found = sessions_.find({tenant, name});
  return found == sessions_.end() ? nullptr : &found->second;
}

void SessionStore::set_busy(Session& session, bool busy) {
  session.busy = busy;
  update(session);
  make_room(0, For::kNew);  // for what plan_growth() has planned, at once or as soon as it can be
}

void SessionStore::touch(Session& session, Clock::time_point now) {
  session.last_used = now;
  update(session);
}

void SessionStore::expire(Clock::time_point now) {
  for (int closed = 0; closed < kMostExpired && !by_expiry_.empty(); ++closed) {
    const auto& [when, session] = *by_expiry_.begin();
    if (when > now) return;
    if (session->durable()) write({.key = key_of(*session), .removes = true}, [](const auto&) {});
    if (limits_.on_expired) limits_.on_expired(session->tenant_name, session->name);
    erase(*session);
  }
}

std::optional<Clock::time_point> SessionStore::next_expiry() const {
  if (by_expiry_.empty() || by_expiry_.begin()->first == Clock::time_point::max()) {
    return std::nullopt;
  }
  return by_expiry_.begin()->first;
}

// The session's state in host memory, where it stays until the session has another one: so it is
// copied once, however many marks, forks and exports are made of it. What it takes is reserved.
const StateImage& SessionStore::image_of(Session& session) {
  if (session.slot && !session.at.image) {
    session.at.image = save(session, *session.slot, session.at.position);
    update(session);
  }
  return session.at.image;
}

Snapshot SessionStore::snapshot(Session& session) {
  image_of(session);
  return session.at;
}

SessionInfo SessionStore::describe(const Session& session, Clock::time_point now) const {
  SessionInfo info{.name = std::string(session.name),
                   .model = limits_.model_name,
                   .parent = session.parent,
                   .position = position_still_there(session),
                   .pending_token = session.at.pending,
                   .tier = session.tier(),
                   .busy = session.busy,
                   .epoch = session.epoch,
                   .idle_seconds = session.busy ? 0 : seconds_between(session.last_used, now),
                   .ttl_seconds = session.ttl_seconds,
                   .state_bytes = static_cast<int64_t>(pool_.layout().bytes(session.at.position)),
                   .page_bytes = page_bytes_of(pool_.layout(), session.at.position),
                   .host_bytes = session.share.reserved,
                   .durability = session.durability,
                   .commit = last_commit(session),
                   .in_doubt = session.in_doubt || session.state_lost,
                   .rewind_tokens = session.at.log.most(),
                   .tokens_from = session.at.log.begin()};
  const auto& [initial_state, adapter] = session.binding;
  if (initial_state) info.binding.initial_state = initial_state->id.name;
  if (adapter) info.binding.adapter = adapter->id.name;
  for (const auto& [name, snapshot] : session.marks) {
    info.marks.push_back({.name = name, .position = snapshot.position});
  }
  return info;
}

SessionResult SessionStore::described(const Session& session, Clock::time_point now) const {
  SessionResult result;
  result.sessions.push_back(describe(session, now));
  return result;
}

// state: bytes of its state; 0: it is on the disk alone. log: tokens that it stores.
int64_t SessionStore::reserved_for(std::string_view name, int64_t state, int64_t log) const {
  return bytes_each_ - state_memory_ + name_bytes(name.size()) + state + memory_for_log(log);
}

// Its tokens, and what is known of them on the disk.
int64_t SessionStore::memory_for_log(int64_t log) const {
  const int64_t parts = archive_ == nullptr ? 0 : most_parts(log);
  constexpr int64_t kPart = heap_bytes(sizeof(StoredState) + 2 * sizeof(void*));
  return heap_bytes(TokenLog::most_bytes(log)) +
         parts *
             (static_cast<int64_t>(sizeof(StoredTokens)) + kPart + StateStore::page_group_memory());
}

// As for a state: those that are replaced are there too, and segments are half unused.
int64_t SessionStore::disk_for_log(int64_t log) const {
  if (log == 0) return 0;
  const size_t described = most_token_bytes(wanted_.vocab, 0);
  return 2 * (static_cast<int64_t>(most_token_bytes(wanted_.vocab, 2 * log)) +
              most_parts(log) * static_cast<int64_t>(described));
}

int64_t SessionStore::reserved_by(const Session& session) const {
  const bool here = session.residency != Residency::kDisk || session.emptying;
  const int64_t state = here ? state_memory(final_position(session)) : 0;
  const int64_t log = session.at.log.most();
  int64_t bytes = reserved_for(session.name, state, log) + name_bytes(session.parent.size()) +
                  session.replay_memory;
  for (const auto& [name, mark] : session.marks) {
    bytes += reserved_for(name, mark.image ? state_memory(mark.position) : 0, log);
  }
  return bytes;
}

SessionShare SessionStore::share_of(const Session& session) const {
  const bool in_slot = session.tier() == Tier::kSlot;
  SessionShare share{.residency = session.residency,
                     .in_slot_alone = in_slot && !session.at.image,
                     .busy = session.busy,
                     .durable = session.durable(),
                     .internal = session.name.starts_with(kReserved),
                     .sessions = 1,
                     .entries = 1 + static_cast<int32_t>(session.marks.size()),
                     .reserved = reserved_by(session),
                     .disk = disk_for(session.durability, final_position(session),
                                      session.stored_pages, session.at.log.most()),
                     .small = reserved_for(session.name, 0, session.at.log.most()) +
                              name_bytes(session.parent.size())};
  const auto count = [&](int64_t bytes, bool stored, bool may_move) {
    if (stored && session.durable()) return;
    (may_move ? share.movable : share.held) += bytes;
    if (may_move && stored) share.moved += bytes;
  };
  const bool moves = !session.durable() && session.tier() != Tier::kEmpty;
  count(state_memory(final_position(session)),
        session.at.stored || session.residency == Residency::kSpilling, moves);
  if (session.emptying) share.held += state_memory_;
  for (const auto& [name, mark] : session.marks) {
    share.small += reserved_for(name, 0, session.at.log.most());
    if (!mark.image && !mark.stored) continue;  // where nothing had been absorbed
    count(state_memory(mark.position), mark.stored != nullptr,
          !session.durable() && mark.stored && !mark.image);
  }
  return share;
}

// States without pages that the disk has capacity for in addition to those of durable sessions, if
// these reserve so much more. What a state takes on the disk is no larger for its bytes of host
// memory with pages than without.
int64_t SessionStore::disk_places(int64_t more_reserved) const {
  if (archive_ == nullptr) return 0;
  return (limits_.disk_bytes - disk_reserved() - more_reserved) / disk_each_;
}

int64_t SessionStore::spare_disk_bytes() const {
  constexpr int64_t kNext = 2;  // that is opened, or moves, before this is asked again
  return std::max<int64_t>((disk_places(0) - states_moved() - kNext) / 2, 0) * (disk_each_ / 2);
}

// Host memory that sessions may come to need, so that each of them can always come back, were they
// that much more. A state that moves has capacity on the disk or here, and capacity here for one
// state is left for sessions that replace each other. That is enough: where a session comes back,
// no other is busy, and none may leave at once, either the disk has capacity for the one that
// leaves, or it has all that it may have, and the capacity for one state here is free.
int64_t SessionStore::planned(int64_t small, int64_t states, int64_t more_on_disk,
                              int64_t movable) const {
  const int64_t on_disk = std::max<int64_t>(disk_places(more_on_disk), 0) * state_memory_;
  const int64_t may_move = totals_.movable + movable;
  const bool comes_back = archive_ != nullptr && may_move + disk_reserved() > 0;
  return totals_.small + stored_pages_.memory() + small + totals_.held + states +
         std::max<int64_t>(may_move - on_disk, 0) + (comes_back ? largest_state_ : 0);
}

// Of so many bytes for somebody new, which fit in the plan or do not; why(): the sentence that says
// so.
template <typename Why>
std::optional<SessionResult> SessionStore::no_room_of(int64_t wanted, bool fits, const Why& why) {
  const Room room = fits ? make_room(wanted, For::kNew) : Room::kNone;
  if (room == Room::kThere) return std::nullopt;
  if (room == Room::kComing) return SessionResult{.progress = SessionResult::Progress::kWaiting};
  return SessionResult{.reason = EndReason::kExhausted, .message = why()};
}

std::optional<SessionResult> SessionStore::no_room(std::string_view name, std::string_view parent,
                                                   int64_t state, int64_t log,
                                                   int64_t more_on_disk) {
  const int64_t small = reserved_for(name, 0, log) + name_bytes(parent.size());
  const int64_t wanted = small + state;
  const bool fits = planned(small, state, more_on_disk) <= limits_.host_bytes;
  return no_room_of(wanted, fits, [&] {
    return fmt::format(
        "{} sessions and marks reserve {} of the {} bytes of --session-memory, and one more needs "
        "{}: close sessions or marks, or raise --session-memory",
        totals_.entries, planned(0, 0, 0), limits_.host_bytes, wanted);
  });
}

// For one that is to have absorbed nothing: it cannot move to the disk any more, until it has.
std::optional<SessionResult> SessionStore::no_room_to_empty(const Session& session) {
  const int64_t wanted = session.tier() == Tier::kDisk ? state_memory_ : 0;
  const int64_t moves = session.durable() ? 0 : state_memory(session.at.position);
  const bool fits = planned(0, state_memory_, 0, -moves) <= limits_.host_bytes;
  return no_room_of(wanted, fits, [&] {
    return fmt::format(
        "session \"{}\" would need {} bytes of host memory that it cannot share once it is empty, "
        "and too few of the {} bytes of --session-memory are free: close sessions or marks, or "
        "raise --session-memory",
        session.name, state_memory_, limits_.host_bytes);
  });
}

// What a durable session needs, or why there is none.
SessionResult SessionStore::refuse_durable(Durability durability, const Snapshot& at) const {
  if (durability == Durability::kNone) return {};
  if (archive_ == nullptr) {
    return {.reason = EndReason::kUnsupported,
            .message =
                "durable sessions need a server with --state-dir: start it so, or leave out "
                "durability"};
  }
  if (std::string lost = archive_->lost(); !lost.empty()) {
    return {.reason = EndReason::kFolderLost, .message = std::move(lost)};
  }
  const int64_t left = limits_.disk_bytes - disk_reserved();
  const int64_t wanted = disk_for(durability, at);
  if (wanted <= left && states_moved() <= disk_places(wanted)) return {};
  return {.reason = EndReason::kExhausted,
          .message = fmt::format("durable sessions reserve {} of the {} bytes of --state-disk for "
                                 "sessions, {} other states were moved there from memory, and one "
                                 "more needs {}: close some, or raise --state-disk",
                                 disk_reserved(), limits_.disk_bytes, states_moved(), wanted)};
}

int64_t SessionStore::disk_for(Durability durability, const Snapshot& at) const {
  const bool shares = durability != Durability::kNone && at.stored && at.stored->durable();
  return disk_for(durability, at.position,
                  shares ? archive_->store().pages_of(*at.stored).count : 0, at.log.most());
}

// After each change of a durable session's state or marks on the disk.
void SessionStore::count_pages(Session& session) {
  if (!session.durable() || page_memory_ == 0) return;
  const StateStore& store = archive_->store();
  std::vector<uint64_t> groups;
  const auto add = [&](const StoredPtr& stored) {
    const StateStore::Pages last = stored ? store.pages_of(*stored) : StateStore::Pages{};
    if (last.id > 0) groups.push_back(last.id);
    stored_pages_.add(store, session.tenant, last);
    return last.count;
  };
  const int64_t pages = add(session.at.stored);
  for (const auto& [name, mark] : session.marks) add(mark.stored);
  forget_pages(session);
  session.page_groups = std::move(groups);
  session.stored_pages = pages;
}

void SessionStore::forget_pages(Session& session) {
  for (const uint64_t last : session.page_groups) stored_pages_.remove(session.tenant, last);
  session.page_groups.clear();
}

std::string SessionStore::plan_growth(Session& session, const Identity& caller, int64_t tokens) {
  const int64_t before = final_position(session);
  if (page_memory_ == 0 || tokens <= before) return {};
  const int64_t host = state_memory(tokens) - state_memory(before);
  const int64_t disk =
      disk_for(session.durability, tokens, session.stored_pages, session.at.log.most()) -
      session.share.disk;
  std::string over = over_share(caller, host, disk);
  if (!over.empty()) return over;
  const bool moves = session.share.movable > 0;
  const bool fits = session.durable()
                        ? disk_reserved() + disk <= limits_.disk_bytes
                        : planned(0, moves ? 0 : host, 0, moves ? host : 0) <= limits_.host_bytes;
  if (!fits) {
    return fmt::format(
        "session \"{}\" would have {} tokens, whose state needs {} bytes more than it has "
        "reserved: close sessions or marks, or raise {}",
        session.name, tokens, session.durable() ? disk : host,
        session.durable() ? "--state-disk" : "--session-memory");
  }
  session.planned_position = tokens;
  cache_.reserve(host_reserved() + host);
  return {};
}

void SessionStore::erase(Session& session) {
  totals_.add(session.share, -1);
  forget_pages(session);
  has_ended_ |= session.busy;
  take_slot(session);
  by_use_.erase({session.leave, session.used_at, &session});
  by_expiry_.erase({session.expires, &session});
  sessions_.erase(sessions_.find({session.tenant, std::string(session.name)}));
  reserve_memory();
}

std::optional<StateSlot> SessionStore::take_slot(Session& session) {
  std::erase(in_slots_, &session);
  return std::exchange(session.slot, std::nullopt);
}

}  // namespace recurve
