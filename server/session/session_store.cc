#include "server/session/session_store.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/check.h"

namespace recurve {
namespace {

using Status = SessionResult::Status;

SessionResult refuse(Status status, std::string message) {
  return {.status = status, .message = std::move(message)};
}

// Longer than any server runs, and short enough for the clock.
constexpr double kLongestTtl = 1e9;
// Closed in one go: the engine has other things to do between two steps.
constexpr int kMostExpired = 256;

Clock::time_point expiry(const Session& session) {
  if (session.ttl_seconds == 0 || session.busy) return Clock::time_point::max();
  return session.last_used + std::chrono::duration_cast<Clock::duration>(
                                 std::chrono::duration<double>(session.ttl_seconds));
}

// What the heap takes for so many bytes: a word of its own, in steps of 16, 32 at least.
constexpr int64_t heap_bytes(size_t bytes) {
  return bytes == 0 ? 0 : static_cast<int64_t>(std::max<size_t>(32, (bytes + 8 + 15) / 16 * 16));
}
// A string of up to so many bytes lies in the object itself.
constexpr size_t kShortString = 15;
int64_t name_bytes(size_t length) { return length > kShortString ? heap_bytes(length + 1) : 0; }

// Bytes that a node of std::map and std::set has beside its value: colour, parent, left and right.
constexpr size_t kNodeBytes = 32;

SessionResult exists(const std::string& name) {
  return refuse(
      Status::kExists,
      fmt::format("there is a session \"{}\" already: close it or take another name", name));
}

SessionResult no_mark(const Session& session, const std::string& mark) {
  return refuse(Status::kNotFound,
                fmt::format("session \"{}\" has no mark \"{}\"", session.name, mark));
}

}  // namespace

// Takes the session out of the counts and the order that it stands in, and puts it back as it is
// then. Nothing in it can fail.
class SessionStore::Change {
 public:
  Change(SessionStore& store, Session& session)
      : store_(store),
        session_(session),
        place_(store.by_expiry_.extract({session.expires, &session})) {
    --store_.count_of(session_);
  }
  ~Change() {
    ++store_.count_of(session_);
    session_.expires = expiry(session_);
    place_.value() = {session_.expires, &session_};
    store_.by_expiry_.insert(std::move(place_));
  }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  SessionStore& store_;
  Session& session_;
  ByExpiry::node_type place_;
};

Tier Session::tier() const {
  if (at.image) return Tier::kHost;
  return slot || running ? Tier::kSlot : Tier::kEmpty;
}

SessionStore::SessionStore(Backend& backend, StatePool& pool, const SessionLimits& limits,
                           int32_t vocab)
    : pool_(pool),
      limits_(limits),
      state_bytes_(static_cast<int64_t>(pool.layout().bytes())),
      bytes_each_(bytes_each(pool.layout(), vocab)),
      images_(backend, pool.layout().bytes()) {
  in_slots_.reserve(static_cast<size_t>(pool.slots()));
}

SessionStore::~SessionStore() { pool_.wait_for_copies(); }

int64_t SessionStore::bytes_each(const StateLayout& layout, int32_t vocab) {
  constexpr int64_t kSessionBytes =
      heap_bytes(kNodeBytes + sizeof(decltype(sessions_)::value_type)) +
      heap_bytes(kNodeBytes + sizeof(ByExpiry::value_type));
  return static_cast<int64_t>(ImageMemory::bytes_each(layout.bytes())) + kSessionBytes +
         heap_bytes(TokenHistory::most_bytes(vocab));
}

SessionResult SessionStore::run(const SessionCommand& command, Clock::time_point now) {
  using Kind = SessionCommand::Kind;
  if (command.kind == Kind::kOpen) return open(command, now);
  if (command.kind == Kind::kList) return list(command, now);

  Session* session = find(command.name, command.caller.tenant);
  if (session == nullptr) {
    return refuse(Status::kNotFound,
                  fmt::format("there is no session \"{}\": open it first", command.name));
  }
  if (command.kind == Kind::kGet) return described(*session, now);
  if (session->busy) {
    return refuse(Status::kBusy,
                  fmt::format("session \"{}\" is serving a request: wait for its end or cancel it",
                              command.name));
  }
  switch (command.kind) {
    case Kind::kFork:
      return fork(*session, command, now);
    case Kind::kMark:
      return mark(*session, command, now);
    case Kind::kUnmark:
      return unmark(*session, command, now);
    case Kind::kRewind:
      return rewind(*session, command, now);
    default:
      return close(*session, now);
  }
}

SessionResult SessionStore::open(const SessionCommand& command, Clock::time_point now) {
  return insert({command.caller.tenant, command.name}, "", Snapshot{}, std::nullopt,
                command.ttl_seconds, now);
}

SessionResult SessionStore::fork(Session& session, const SessionCommand& command,
                                 Clock::time_point now) {
  if (sessions_.contains({session.tenant, command.other})) return exists(command.other);
  if (auto full = no_room(command.other, command.name)) return *full;
  Key key{session.tenant, command.other};
  std::optional<StateSlot> slot;
  if (session.slot) slot = pool_.acquire_unset();
  if (!slot) {
    return insert(std::move(key), command.name, snapshot(session), std::nullopt,
                  command.ttl_seconds, now);
  }
  pool_.copy(*session.slot, *slot);
  return insert(std::move(key), command.name, session.at, std::move(slot), command.ttl_seconds,
                now);
}

SessionResult SessionStore::mark(Session& session, const SessionCommand& command,
                                 Clock::time_point now) {
  const bool moves = session.marks.contains(command.other);
  if (!moves) {
    if (auto full = no_room(command.other)) return *full;
  }
  Snapshot here = snapshot(session);
  session.marks[command.other] = std::move(here);
  if (!moves) {
    reserved_ += reserved_for(command.other);
    ++entries_;
  }
  touch(session, now);
  return described(session, now);
}

SessionResult SessionStore::unmark(Session& session, const SessionCommand& command,
                                   Clock::time_point now) {
  if (session.marks.erase(command.other) == 0) return no_mark(session, command.other);
  reserved_ -= reserved_for(command.other);
  --entries_;
  touch(session, now);
  return described(session, now);
}

SessionResult SessionStore::rewind(Session& session, const SessionCommand& command,
                                   Clock::time_point now) {
  const auto mark = session.marks.find(command.other);
  if (mark == session.marks.end()) return no_mark(session, command.other);
  Snapshot back = mark->second;
  {
    const Change change(*this, session);
    take_slot(session);
    session.at = std::move(back);
    session.last_used = now;
    ++session.epoch;
  }
  return described(session, now);
}

SessionResult SessionStore::close(Session& session, Clock::time_point now) {
  SessionResult closed = described(session, now);
  erase(session);
  return closed;
}

SessionResult SessionStore::list(const SessionCommand& command, Clock::time_point now) const {
  SessionResult result;
  const TenantId tenant = command.caller.tenant;
  auto at = command.other < command.name ? sessions_.lower_bound({tenant, command.name})
                                         : sessions_.upper_bound({tenant, command.other});
  for (; at != sessions_.end(); ++at) {
    if (at->first.tenant != tenant || !at->first.name.starts_with(command.name)) break;
    if (at->first.name.starts_with(kKept)) break;  // behind all others
    if (static_cast<int>(result.sessions.size()) == command.limit) {
      result.more = true;
      break;
    }
    result.sessions.push_back(describe(at->second, now));
  }
  return result;
}

SessionResult SessionStore::insert(Key key, const std::string& parent, Snapshot at,
                                   std::optional<StateSlot> slot, std::optional<double> ttl,
                                   Clock::time_point now) {
  if (sessions_.contains(key)) return exists(key.name);
  if (auto full = no_room(key.name, parent)) return *full;
  const auto place = sessions_.try_emplace(std::move(key)).first;
  Session& session = place->second;
  session.tenant = place->first.tenant;
  session.name = place->first.name;
  session.at = std::move(at);
  session.slot = std::move(slot);
  session.ttl_seconds = std::min(ttl.value_or(limits_.default_ttl_seconds), kLongestTtl);
  session.last_used = now;
  session.expires = expiry(session);
  try {
    session.parent = parent;
    SessionResult result = described(session, now);
    by_expiry_.emplace(session.expires, &session);
    ++count_of(session);
    reserved_ += reserved_for(session.name, session.parent);
    ++entries_;
    if (session.slot) in_slots_.push_back(&session);
    return result;
  } catch (...) {
    sessions_.erase(place);
    throw;
  }
}

Session* SessionStore::find(const std::string& name, TenantId tenant) {
  const auto found = sessions_.find({tenant, name});
  return found == sessions_.end() ? nullptr : &found->second;
}

void SessionStore::set_busy(Session& session, bool busy) {
  const Change change(*this, session);
  session.busy = busy;
}

void SessionStore::touch(Session& session, Clock::time_point now) {
  const Change change(*this, session);
  session.last_used = now;
}

StateSlot SessionStore::check_out(Session& session) {
  const Change change(*this, session);
  std::optional<StateSlot> slot = take_slot(session);
  if (!slot) {
    slot = session.at.image ? pool_.acquire_unset() : pool_.acquire();
    CHECK(slot);
    if (session.at.image) pool_.load(session.at.image, *slot);
    session.at.image.reset();
  }
  session.running = true;
  return std::move(*slot);
}

void SessionStore::check_in(Session& session, StateSlot slot, Snapshot at, Clock::time_point now) {
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
  StateImage image = save(*oldest->slot);
  const Change change(*this, *oldest);
  oldest->at.image = std::move(image);
  take_slot(*oldest);
  return true;
}

void SessionStore::expire(Clock::time_point now) {
  for (int closed = 0; closed < kMostExpired && !by_expiry_.empty(); ++closed) {
    const auto& [when, session] = *by_expiry_.begin();
    if (when > now) return;
    erase(*session);
  }
}

std::optional<Clock::time_point> SessionStore::next_expiry() const {
  if (by_expiry_.empty() || by_expiry_.begin()->first == Clock::time_point::max()) {
    return std::nullopt;
  }
  return by_expiry_.begin()->first;
}

SessionStore::Counts SessionStore::counts() const {
  return {.total = static_cast<int>(sessions_.size()),
          .in_slot = in_slot_,
          .in_host = in_host_,
          .empty = empty_,
          .host_bytes = images_.images() * state_bytes_};
}

int& SessionStore::count_of(const Session& session) {
  switch (session.tier()) {
    case Tier::kSlot:
      return in_slot_;
    case Tier::kHost:
      return in_host_;
    case Tier::kEmpty:
      break;
  }
  return empty_;
}

StateImage SessionStore::save(const StateSlot& slot) {
  const std::shared_ptr<std::byte> image = images_.take();
  pool_.save(slot, image, [this, place = image.get()] { images_.prepare(place); });
  return image;
}

Snapshot SessionStore::snapshot(const Session& session) {
  Snapshot copy = session.at;
  if (session.slot) copy.image = save(*session.slot);
  return copy;
}

SessionInfo SessionStore::describe(const Session& session, Clock::time_point now) const {
  SessionInfo info{.name = std::string(session.name),
                   .parent = session.parent,
                   .position = session.at.position,
                   .pending_token = session.at.pending,
                   .tier = session.tier(),
                   .busy = session.busy,
                   .epoch = session.epoch,
                   .idle_seconds = session.busy ? 0 : seconds_between(session.last_used, now),
                   .ttl_seconds = session.ttl_seconds,
                   .state_bytes = state_bytes_,
                   .host_bytes = reserved_by(session)};
  for (const auto& [name, snapshot] : session.marks) {
    info.marks.push_back({.name = name, .position = snapshot.position});
  }
  return info;
}

SessionResult SessionStore::described(const Session& session, Clock::time_point now) const {
  SessionResult result{.status = Status::kOk};
  result.sessions.push_back(describe(session, now));
  return result;
}

int64_t SessionStore::reserved_for(std::string_view name, std::string_view parent) const {
  return bytes_each_ + name_bytes(name.size()) + name_bytes(parent.size());
}

int64_t SessionStore::reserved_by(const Session& session) const {
  int64_t bytes = reserved_for(session.name, session.parent);
  for (const auto& [name, snapshot] : session.marks) bytes += reserved_for(name);
  return bytes;
}

std::optional<SessionResult> SessionStore::no_room(std::string_view name,
                                                   std::string_view parent) const {
  const int64_t wanted = reserved_for(name, parent);
  if (reserved_ + wanted <= limits_.host_bytes) return std::nullopt;
  return refuse(
      Status::kFull,
      fmt::format("{} sessions and marks reserve {} of the {} bytes set aside for them, and one "
                  "more takes {}: close sessions or marks, or raise --session-memory",
                  entries_, reserved_, limits_.host_bytes, wanted));
}

void SessionStore::erase(Session& session) {
  --count_of(session);
  take_slot(session);
  reserved_ -= reserved_by(session);
  entries_ -= 1 + static_cast<int64_t>(session.marks.size());
  by_expiry_.erase({session.expires, &session});
  sessions_.erase(sessions_.find({session.tenant, std::string(session.name)}));
}

std::optional<StateSlot> SessionStore::take_slot(Session& session) {
  std::erase(in_slots_, &session);
  return std::exchange(session.slot, std::nullopt);
}

}  // namespace recurve
