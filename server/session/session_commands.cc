// What clients ask of sessions.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/check.h"
#include "server/session/session_store.h"
#include "server/session/state_transfer.h"

namespace recurve {
namespace {

using Progress = SessionResult::Progress;

// The state that the command comes with; null: none.
const ImportedState* state_in(const SessionCommand& command) {
  const InitialState* const initial = command.binding.initial_state.get();
  const ReadyState* const state = initial != nullptr ? initial->state.get() : command.state.get();
  if (state == nullptr) return nullptr;
  const auto* imported = dynamic_cast<const ImportedState*>(state);
  CHECK(imported != nullptr);
  return imported;
}

// Longer than any server runs, and short enough for the clock.
constexpr double kLongestTtl = 1e9;

SessionResult exists(const std::string& name) {
  return refused_command(
      EndReason::kExists,
      fmt::format("session \"{}\" exists: close it or choose another name", name));
}

}  // namespace

SessionResult SessionStore::run(const SessionCommand& command, Clock::time_point now) {
  using Kind = SessionCommand::Kind;
  const bool makes =
      command.kind == Kind::kOpen || command.kind == Kind::kFork || command.kind == Kind::kImport;
  if (makes && has_its_sessions(command)) {
    return refused_command(
        EndReason::kExhausted,
        fmt::format("tenant \"{}\" has {} sessions, which is its limit: close some",
                    command.caller.tenant_name, command.caller.limits.sessions));
  }
  if (const std::string full = no_share(command); !full.empty()) {
    return refused_command(EndReason::kExhausted, full);
  }
  if (command.kind == Kind::kOpen || command.kind == Kind::kImport) return open(command, now);
  if (command.kind == Kind::kList) return list(command, now);

  Session* session = find(command.name, command.caller.tenant);
  if (session == nullptr) {
    return refused_command(EndReason::kNoSession,
                           fmt::format("there is no session \"{}\": open it first", command.name));
  }
  if (command.kind == Kind::kGet) return described(*session, now);
  if (auto refused = refuse_unusable(*session, command.kind)) return *refused;
  if (command.expected_epoch && *command.expected_epoch != session->epoch) {
    return refused_command(EndReason::kConflict,
                           fmt::format("session \"{}\" has epoch {}, expected {}: read it again",
                                       command.name, session->epoch, *command.expected_epoch));
  }
  if (session->durable()) {
    if (std::string lost = archive_->lost(); !lost.empty()) {
      return refused_command(EndReason::kFolderLost, std::move(lost));
    }
  }
  if (session->residency == Residency::kLoading)
    return SessionResult{.progress = Progress::kWaiting};
  if (session->busy) {
    return refused_command(
        EndReason::kSessionBusy,
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
    case Kind::kExport:
      return command.other.empty() ? export_state(*session, command, now)
                                   : export_mark(*session, command, now);
    case Kind::kAccept:
      return accept(*session, command, now);
    default:
      return close(*session, command, now);
  }
}

// Why the command would take more memory or disk than its tenant may have; empty: it would not. A
// mark takes what a session does, and a fork is as durable as what it is of, where it does not say.
std::string SessionStore::no_share(const SessionCommand& command) const {
  using Kind = SessionCommand::Kind;
  const Identity& caller = command.caller;
  const bool makes = command.kind == Kind::kOpen || command.kind == Kind::kFork ||
                     command.kind == Kind::kImport || command.kind == Kind::kMark;
  if (!makes) return {};
  const auto of_one = sessions_.find({caller.tenant, command.name});
  const bool copies = command.kind == Kind::kFork || command.kind == Kind::kMark;
  Snapshot at{.log = TokenLog(command.rewind_tokens)};
  if (copies && of_one != sessions_.end()) {
    at.position = of_one->second.at.position;
    at.stored = of_one->second.at.stored;
    at.log = TokenLog(of_one->second.at.log.most());
  }
  if (const ImportedState* state = state_in(command)) at.position = state->at.position;
  const Durability own = command.kind != Kind::kFork || of_one == sessions_.end()
                             ? Durability::kNone
                             : of_one->second.durability;
  return over_share(caller, reserved_for(command.name, state_memory(at.position), at.log.most()),
                    disk_for(command.durability.value_or(own), at));
}

// With so much more for its sessions.
std::string SessionStore::over_share(const Identity& caller, int64_t host, int64_t disk) const {
  const TenantLimits& limits = caller.limits;
  if (limits.host_bytes == TenantLimits::kNoBytes && limits.disk_bytes == TenantLimits::kNoBytes) {
    return {};
  }
  disk += stored_pages_.bytes(caller.tenant);
  for (auto at = sessions_.lower_bound({caller.tenant, ""});
       at != sessions_.end() && at->first.tenant == caller.tenant; ++at) {
    host += at->second.share.reserved;
    disk += at->second.share.disk;
  }
  const auto sentence = [&](const char* of, int64_t most, int64_t bytes) {
    return fmt::format(
        "tenant \"{}\" may use {} bytes of {} for its sessions and marks, and needs {} with this "
        "one: close some",
        caller.tenant_name, most, of, bytes);
  };
  if (host > limits.host_bytes) return sentence("host memory", limits.host_bytes, host);
  if (disk > limits.disk_bytes) return sentence("the disk", limits.disk_bytes, disk);
  return {};
}

// Whether the tenant has as many as it may.
bool SessionStore::has_its_sessions(const SessionCommand& command) const {
  const Identity& caller = command.caller;
  if (caller.limits.sessions == TenantLimits::kNone) return false;
  int count = 0;
  for (auto at = sessions_.lower_bound({caller.tenant, ""});
       at != sessions_.end() && at->first.tenant == caller.tenant; ++at) {
    if (++count >= caller.limits.sessions) return true;
  }
  return caller.limits.sessions == 0;
}

// Empty, or with the state that the command comes with.
SessionResult SessionStore::open(const SessionCommand& command, Clock::time_point now) {
  Snapshot at{.log = TokenLog(command.rewind_tokens)};
  if (const ImportedState* state = state_in(command)) {
    at = state->at;
    at.log = state->log(command.rewind_tokens);
  }
  return insert(command, {command.caller.tenant, command.name}, nullptr, std::move(at),
                std::nullopt, command.durability.value_or(Durability::kNone), now);
}

// Sends for the state, which is on the disk alone: the command waits for it, or is refused where it
// did not come. Nothing: there is no room for it.
std::optional<SessionResult> SessionStore::bring_for_command(Session& session) {
  if (const auto failed = std::move(session.not_loaded)) {
    if (auto lost = unusable(session)) return lost;
    return refused_command(
        failed->reason,
        fmt::format("the state of session \"{}\" cannot be read: {}", session.name, failed->error));
  }
  const auto done = [&session](const Archive::Loaded& loaded) {
    if (!loaded.error.empty()) session.not_loaded = std::make_unique<Archive::Loaded>(loaded);
  };
  if (bring(session, done) == Room::kNone) return std::nullopt;
  return SessionResult{.progress = Progress::kWaiting};
}

// A durable one has its state on the disk, with which the new one can begin.
SessionResult SessionStore::fork(Session& session, const SessionCommand& command,
                                 Clock::time_point now) {
  if (sessions_.contains({session.tenant, command.other})) return exists(command.other);
  const Durability durability = command.durability.value_or(session.durability);
  SessionResult refused = refuse_durable(durability, session.at);
  if (refused.reason != EndReason::kDone) return refused;
  const int64_t state = state_memory(session.at.position);
  const int64_t disk = disk_for(durability, session.at);
  const int64_t log = session.at.log.most();
  const bool stored = session.at.stored && session.at.stored->durable();
  const bool needs_image = durability != Durability::kNone && !stored;
  if (needs_image && session.tier() == Tier::kDisk) {
    const auto waits = bring_for_command(session);
    return waits ? *waits : *no_room(command.other, command.name, state, log, 0);
  }
  if (auto full = no_room(command.other, command.name, state, log, disk)) return *full;
  Key key{session.tenant, command.other};
  std::optional<StateSlot> slot;
  const bool shares = session.at.image || needs_image;
  if (session.slot && !shares) slot = pool_.acquire_unset();
  if (slot && !pool_.share_pages(*session.slot, *slot, session.at.position)) slot.reset();
  if (!slot) {
    return insert(command, std::move(key), &session, snapshot(session), std::nullopt, durability,
                  now);
  }
  pool_.copy(*session.slot, *slot, session.at.position);
  return insert(command, std::move(key), &session, session.at, std::move(slot), durability, now);
}

SessionResult SessionStore::close(Session& session, const SessionCommand& command,
                                  Clock::time_point now) {
  if (session.durable()) return remove_then_tell(session, command, now);
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
    if (at->first.name.starts_with(kReserved)) break;  // behind all others
    if (static_cast<int>(result.sessions.size()) == command.limit) {
      result.more = true;
      break;
    }
    result.sessions.push_back(describe(at->second, now));
  }
  return result;
}

// The state is brought to host memory, whose bytes are reserved; reading it there delays nothing
// else.
SessionResult SessionStore::export_state(Session& session, const SessionCommand& command,
                                         Clock::time_point now) {
  if (session.tier() == Tier::kEmpty) {
    return refused_command(
        EndReason::kEmptySession,
        fmt::format("session \"{}\" is empty: it has no state yet", command.name));
  }
  if (session.tier() == Tier::kDisk) {
    if (const auto waits = bring_for_command(session)) return *waits;
    return refused_command(
        EndReason::kExhausted,
        "not enough host memory for the session's state, which is on the disk: try "
        "again later, or raise --session-memory");
  }
  image_of(session);
  touch(session, now);
  return exported(session, session.at, command, now);
}

// at: with its image, which may be on its way there. Its tokens may be on the disk alone.
SessionResult SessionStore::exported(const Session& session, const Snapshot& at,
                                     const SessionCommand& command, Clock::time_point now) {
  SessionResult result = described(session, now);
  StateHeader header = header_of(session, at);
  if (const TokenLog& log = at.log; log.most() > 0 && log.is_loaded()) {
    header.tokens = log.words(log.begin(), log.end());
    header.tokens_first = log.begin();
    header.tokens_before = log.first_digest();
  } else if (log.most() > 0) {
    header.tokens_first = log.end();
    header.tokens_before = log.digest();
  }
  SessionInfo& info = result.sessions.front();
  info.position = at.position;
  info.tokens_from = at.log.most() > 0 ? header.tokens_first : at.position;
  result.state = source_of(std::move(header), at.image);
  if (pool_.copied(pool_.asked())) return result;
  exporting_.push_back({pool_.asked(), std::move(result), command.done});
  return {.progress = Progress::kCommitting};
}

// forked: the session whose state it has; null: none.
SessionResult SessionStore::insert(const SessionCommand& command, Key key, const Session* forked,
                                   Snapshot at, std::optional<StateSlot> slot,
                                   Durability durability, Clock::time_point now) {
  const std::string parent(forked != nullptr ? forked->name : std::string_view());
  if (sessions_.contains(key)) return exists(key.name);
  SessionResult refused = refuse_durable(durability, at);
  if (refused.reason != EndReason::kDone) return refused;
  const int64_t state = state_memory(at.position), disk = disk_for(durability, at);
  if (auto full = no_room(key.name, parent, state, at.log.most(), disk)) return *full;
  SessionNames::Claim name = claim(key);
  if (limits_.names != nullptr && name == nullptr) return exists(key.name);
  const double otherwise = durability == Durability::kNone ? limits_.default_ttl_seconds : 0;
  const double ttl = std::min(command.ttl_seconds.value_or(otherwise), kLongestTtl);
  Session& session = put(std::move(key), parent, std::move(at), ttl, now);
  session.claim = std::move(name);
  session.binding = forked != nullptr ? forked->binding : command.binding;
  session.tenant_name = command.caller.tenant_name;
  session.slot = std::move(slot);
  if (session.slot) in_slots_.push_back(&session);
  session.durability = durability;
  count_pages(session);
  update(session, session.slot ? Residency::kSlot : session.residency);
  if (!session.durable()) return described(session, now);
  Proposal proposal{.at = session.at};
  proposal.writes = session.at.image && !(session.at.stored && session.at.stored->durable());
  return commit_then_tell(session, std::move(proposal), command, now);
}

}  // namespace recurve
