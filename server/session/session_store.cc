#include "server/session/session_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace recurve {
namespace {

using Status = SessionResult::Status;

SessionResult refuse(Status status, std::string message) {
  return {.status = status, .message = std::move(message)};
}

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

Clock::time_point expiry(const Session& session) {
  return session.last_used + std::chrono::duration_cast<Clock::duration>(
                                 std::chrono::duration<double>(session.ttl_seconds));
}

// Longer than any server runs, and short enough for the clock.
constexpr double kLongestTtl = 1e9;

bool can_expire(const Session& session) { return session.ttl_seconds > 0 && !session.busy; }

}  // namespace

SessionStore::SessionStore(StatePool& pool, const SessionLimits& limits)
    : pool_(pool), limits_(limits), state_bytes_(static_cast<int64_t>(pool.layout().bytes())) {}

SessionResult SessionStore::run(const SessionCommand& command, Clock::time_point now) {
  using Kind = SessionCommand::Kind;
  if (command.kind == Kind::kOpen) return open(command, now);
  if (command.kind == Kind::kList) return list(command, now);

  Session* session = find(command.name);
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
      break;
  }
  SessionResult closed = described(*session, now);
  release(*session);
  sessions_.erase(command.name);
  return closed;
}

SessionResult SessionStore::open(const SessionCommand& command, Clock::time_point now) {
  return insert(command.name, Snapshot{}, command.ttl_seconds, now);
}

SessionResult SessionStore::fork(Session& session, const SessionCommand& command,
                                 Clock::time_point now) {
  if (sessions_.contains(command.other)) {
    return refuse(Status::kExists,
                  fmt::format("there is a session \"{}\" already: close it or take another name",
                              command.other));
  }
  if (auto full = no_room()) return *full;
  return insert(command.other, snapshot(session), command.ttl_seconds, now);
}

SessionResult SessionStore::mark(Session& session, const SessionCommand& command,
                                 Clock::time_point now) {
  if (!session.marks.contains(command.other)) {
    if (auto full = no_room()) return *full;
    ++reserved_;
  }
  session.marks[command.other] = snapshot(session);
  session.last_used = now;
  return described(session, now);
}

SessionResult SessionStore::unmark(Session& session, const SessionCommand& command,
                                   Clock::time_point now) {
  if (session.marks.erase(command.other) == 0) {
    return refuse(Status::kNotFound,
                  fmt::format("session \"{}\" has no mark \"{}\"", session.name, command.other));
  }
  --reserved_;
  session.last_used = now;
  return described(session, now);
}

SessionResult SessionStore::rewind(Session& session, const SessionCommand& command,
                                   Clock::time_point now) {
  const auto mark = session.marks.find(command.other);
  if (mark == session.marks.end()) {
    return refuse(Status::kNotFound,
                  fmt::format("session \"{}\" has no mark \"{}\"", session.name, command.other));
  }
  take_slot(session);
  session.at = mark->second;
  session.last_used = now;
  ++session.epoch;
  return described(session, now);
}

SessionResult SessionStore::list(const SessionCommand& command, Clock::time_point now) const {
  SessionResult result;
  auto at = command.other < command.name ? sessions_.lower_bound(command.name)
                                         : sessions_.upper_bound(command.other);
  for (; at != sessions_.end() && at->first.starts_with(command.name); ++at) {
    if (static_cast<int>(result.sessions.size()) == command.limit) {
      result.more = true;
      break;
    }
    result.sessions.push_back(describe(at->second, now));
  }
  return result;
}

SessionResult SessionStore::insert(const std::string& name, Snapshot at, std::optional<double> ttl,
                                   Clock::time_point now) {
  if (sessions_.contains(name)) {
    return refuse(
        Status::kExists,
        fmt::format("there is a session \"{}\" already: close it or take another name", name));
  }
  if (auto full = no_room()) return *full;
  ++reserved_;
  Session& session = sessions_[name];
  session.name = name;
  session.at = std::move(at);
  session.ttl_seconds = std::min(ttl.value_or(limits_.default_ttl_seconds), kLongestTtl);
  session.last_used = now;
  return described(session, now);
}

Session* SessionStore::find(const std::string& name) {
  const auto found = sessions_.find(name);
  return found == sessions_.end() ? nullptr : &found->second;
}

StateSlot SessionStore::check_out(Session& session) {
  std::optional<StateSlot> slot = take_slot(session);
  if (slot) return std::move(*slot);
  slot = pool_.acquire();
  CHECK(slot);
  if (session.at.image) pool_.load(*session.at.image, *slot);
  session.at.image.reset();
  return std::move(*slot);
}

void SessionStore::check_in(Session& session, StateSlot slot, Clock::time_point now) {
  session.slot.emplace(std::move(slot));
  in_slots_.push_back(&session);
  session.busy = false;
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
  oldest->at = snapshot(*oldest);
  take_slot(*oldest);
  return true;
}

void SessionStore::expire(Clock::time_point now) {
  for (auto at = sessions_.begin(); at != sessions_.end();) {
    Session& session = at->second;
    if (!can_expire(session) || expiry(session) > now) {
      ++at;
      continue;
    }
    release(session);
    at = sessions_.erase(at);
  }
}

std::optional<Clock::time_point> SessionStore::next_expiry() const {
  std::optional<Clock::time_point> next;
  for (const auto& [name, session] : sessions_) {
    if (can_expire(session) && (!next || expiry(session) < *next)) next = expiry(session);
  }
  return next;
}

SessionStore::Counts SessionStore::counts() const {
  Counts counts;
  for (const auto& [name, session] : sessions_) {
    ++counts.total;
    if (session.at.image) {
      ++counts.in_host;
      counts.host_bytes += state_bytes_;
    } else if (session.slot || session.busy) {
      ++counts.in_slot;
    } else {
      ++counts.empty;
    }
    for (const auto& [mark, snapshot] : session.marks) {
      if (snapshot.image) counts.host_bytes += state_bytes_;
    }
  }
  return counts;
}

Snapshot SessionStore::snapshot(const Session& session) const {
  Snapshot copy = session.at;
  if (session.slot) copy.image = std::make_shared<const StateImage>(pool_.save(*session.slot));
  return copy;
}

SessionInfo SessionStore::describe(const Session& session, Clock::time_point now) const {
  SessionInfo info{.name = session.name,
                   .position = session.at.position,
                   .pending_token = session.at.pending,
                   .tier = session.slot                              ? Tier::kSlot
                           : session.at.image                        ? Tier::kHost
                           : session.busy && session.at.position > 0 ? Tier::kSlot
                                                                     : Tier::kEmpty,
                   .busy = session.busy,
                   .epoch = session.epoch,
                   .idle_seconds = session.busy ? 0 : seconds_between(session.last_used, now),
                   .ttl_seconds = session.ttl_seconds,
                   .state_bytes = state_bytes_,
                   .host_bytes = state_bytes_ * static_cast<int64_t>(1 + session.marks.size())};
  for (const auto& [name, snapshot] : session.marks) {
    info.marks.push_back({.name = name, .position = snapshot.position});
  }
  return info;
}

SessionResult SessionStore::described(const Session& session, Clock::time_point now) const {
  return {.status = Status::kOk, .sessions = {describe(session, now)}};
}

std::optional<SessionResult> SessionStore::no_room() const {
  if ((reserved_ + 1) * state_bytes_ <= limits_.host_bytes) return std::nullopt;
  return refuse(
      Status::kFull,
      fmt::format("{} sessions and marks of {} bytes fill the {} bytes set aside for them: "
                  "close sessions or marks, or raise --session-memory",
                  reserved_, state_bytes_, limits_.host_bytes));
}

void SessionStore::release(Session& session) {
  take_slot(session);
  reserved_ -= 1 + static_cast<int64_t>(session.marks.size());
}

std::optional<StateSlot> SessionStore::take_slot(Session& session) {
  std::erase(in_slots_, &session);
  return std::exchange(session.slot, std::nullopt);
}

}  // namespace recurve
