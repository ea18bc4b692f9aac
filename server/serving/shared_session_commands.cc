// Commands on sessions of durability remote, whose head may be in the store alone.
#include <fmt/format.h>

#include <functional>
#include <span>
#include <string>
#include <utility>

#include "server/serving/head_record.h"
#include "server/serving/server_core.h"
#include "server/serving/shared_sessions.h"
#include "server/serving/store_refusals.h"

namespace recurve {
namespace {

using Kind = SessionCommand::Kind;
using Outcome = RemoteSessions::Outcome;

Refused busy(const std::string& name) {
  return refuse(
      EndReason::kSessionBusy,
      fmt::format("session \"{}\" is serving a request: wait for its end or cancel it", name));
}

// An exported state in memory.
class TextSource final : public StateSource {
 public:
  explicit TextSource(std::string text) : text_(std::move(text)) {}
  uint64_t bytes() override { return text_.size(); }
  void read(uint64_t offset, std::span<char> to) override {
    text_.copy(to.data(), to.size(), offset);
  }

 private:
  const std::string text_;
};

}  // namespace

Refused SharedSessions::post(SessionCommand command) {
  const Kind kind = command.kind;
  if (!command.model.empty() && command.model != model().name()) {
    if (command.durability != Durability::kRemote) return core_.post_to_engine(std::move(command));
    return refuse(EndReason::kUnsupported,
                  fmt::format("only sessions of the model \"{}\" can have durability remote",
                              model().name()));
  }
  const bool creates = kind == Kind::kOpen || kind == Kind::kImport;
  if (creates && command.durability == Durability::kRemote) return post_create(std::move(command));
  if (creates) return core_.post_to_engine(std::move(command));
  if (kind == Kind::kList) return post_described(std::move(command));
  bool here = false, runs = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find({command.caller.tenant, command.name});
    if (found != entries_.end() && found->second.here) {
      here = true;
      runs = found->second.runs;
      if (Refused refused =
              check_epoch(command.name, command.expected_epoch, found->second.stored.epoch)) {
        return refused;
      }
    }
  }
  if (here) return post_on_copy(std::move(command), runs);
  audit_result(&command);
  if (kind == Kind::kFork && command.durability == Durability::kRemote) {
    const Identity caller = command.caller;
    return run_counted(caller, [this, command = std::move(command)]() mutable {
      look_in_engine_and_store(std::move(command));
    });
  }
  SessionCommand asked = command;
  command.done = [this, asked = std::move(asked)](SessionResult result) mutable {
    if (result.reason != EndReason::kNoSession) return asked.done(std::move(result));
    const auto done = asked.done;
    const Identity caller = asked.caller;
    const Refused refused =
        run_counted(caller, [this, asked = std::move(asked), result = std::move(result)]() mutable {
          look_in_store(std::move(asked), std::move(result));
        });
    if (refused) done(result_of(refused));
  };
  return kind == Kind::kRewind ? core_.post_to_engine(std::move(command))
                               : model().post_unaudited(std::move(command));
}

Refused SharedSessions::run_counted(const Identity& caller, std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (Refused refused = enter(caller)) return refused;
  }
  run(caller.share(), [this, caller, work = std::move(work)] {
    work();
    const std::lock_guard lock(mutex_);
    leave(caller);
  });
  return {};
}

SharedSessions::OfCommand SharedSessions::work_of(Kind kind) {
  switch (kind) {
    case Kind::kClose:
      return std::bind_front(&SharedSessions::close, this);
    case Kind::kMark:
      return std::bind_front(&SharedSessions::mark, this);
    case Kind::kUnmark:
      return std::bind_front(&SharedSessions::unmark, this);
    case Kind::kRewind:
      return std::bind_front(&SharedSessions::rewind, this);
    default:
      return std::bind_front(&SharedSessions::look_at, this);
  }
}

Refused SharedSessions::post_on_copy(SessionCommand command, bool runs) {
  const Kind kind = command.kind;
  if ((kind == Kind::kGet || kind == Kind::kAccept) && runs) {
    return post_described(std::move(command));
  }
  if (kind == Kind::kFork && runs) return busy(command.name);
  if (kind == Kind::kFork &&
      command.durability.value_or(Durability::kRemote) != Durability::kRemote) {
    command.expected_epoch.reset();  // the engine counts others
    return core_.post_to_engine(std::move(command));
  }
  audit_result(&command);
  if (kind != Kind::kFork) return hold_for(std::move(command), work_of(kind));
  const Identity caller = command.caller;
  return run_counted(caller, [this, command = std::move(command)]() mutable {
    look_in_store(std::move(command), {});
  });
}

Refused SharedSessions::post_described(SessionCommand command) {
  command.expected_epoch.reset();  // the engine counts others
  command.done = [this, caller = command.caller,
                  done = std::move(command.done)](SessionResult result) {
    describe(caller, &result);
    done(std::move(result));
  };
  return core_.post_to_engine(std::move(command));
}

// Of sessions that are shared, what the store says.
void SharedSessions::describe(const Identity& caller, SessionResult* result) {
  const std::lock_guard lock(mutex_);
  for (SessionInfo& info : result->sessions) {
    const auto found = entries_.find({caller.tenant, info.name});
    if (found == entries_.end() || !found->second.here) continue;
    const SessionInfo& stored = found->second.stored;
    info.durability = Durability::kRemote;
    info.parent = stored.parent;
    info.commit = stored.commit;
    info.epoch = stored.epoch;
    info.marks = stored.marks;
    info.busy = info.busy || found->second.runs;
  }
}

// The engine has no such session.
void SharedSessions::look_in_store(SessionCommand command, SessionResult otherwise) {
  const auto done = std::exchange(command.done, {});
  try {
    if (Refused refused = unusable()) return done(result_of(refused));
    OwnedSession found;
    const Result read = sessions_.find(tenant_of(command.caller), command.name, &found);
    if (read.outcome == Outcome::kNoSession && otherwise.reason != EndReason::kDone) {
      return done(std::move(otherwise));
    }
    if (!read.done()) return done(result_of(refusal(read)));
    const uint64_t epoch = epoch_of(found.head, record_of(found.head));
    if (Refused refused = check_epoch(command.name, command.expected_epoch, epoch)) {
      return done(result_of(refused));
    }
    const bool reads = command.kind == Kind::kGet || command.kind == Kind::kAccept ||
                       command.kind == Kind::kExport;
    if (reads) return done(answer_from(command, found.head));
    command.done = done;
    if (command.kind == Kind::kFork) return fork(std::move(command), SessionResult());
    const OfCommand work = work_of(command.kind);
    const Refused refused = hold_for(std::move(command), work);
    if (refused) done(result_of(refused));
  } catch (...) {
    done(result_of(refusal_of_exception()));
  }
}

SessionResult SharedSessions::answer_from(const SessionCommand& command, const SessionHead& head) {
  SessionResult result{.sessions = {info_of(head)}};
  if (command.kind != Kind::kExport) return result;
  if (result.sessions.front().tier == Tier::kEmpty) {
    return refused_command(
        EndReason::kEmptySession,
        fmt::format("session \"{}\" is empty: it has no state yet", command.name));
  }
  const HeadRecord record = record_of(head);
  const TransferMemory::Share share = memory_for(head, record, record.at());
  const Result read =
      read_state(head, record, record.at(),
                 [&](std::string text, uint64_t bytes, const ReadGroup& read_group) {
                   if (read_group) {
                     result.state = model().info.join_state(text, bytes, read_group);
                   } else {
                     result.state = std::make_shared<TextSource>(std::move(text));
                   }
                 });
  if (!read.done()) return result_of(refusal(read));
  return result;
}

Refused SharedSessions::post_create(SessionCommand command) {
  if (Refused refused = check_ttl_of_shared(command)) return refused;
  if (!command.chosen.initial_state.empty()) {
    return invalid("initial_state",
                   "a session of durability remote starts from no initial state: leave "
                   "initial_state out, or import the state");
  }
  if (!command.chosen.adapter.empty()) return no_adapter(command.chosen.adapter);
  audit_result(&command);
  return hold_for(std::move(command), [this](SessionCommand of, Entry& entry) {
    return create(std::move(of), "", entry);
  });
}

Refused SharedSessions::hold_for(SessionCommand command, OfCommand work) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find({command.caller.tenant, command.name});
    if (found != entries_.end() && found->second.runs) return busy(command.name);
  }
  const Identity caller = command.caller;
  const std::string name = command.name;
  return hold(caller, name,
              [this, work, caller, name, command = std::move(command)](Entry& entry) mutable {
                const auto done = std::exchange(command.done, {});
                SessionResult result;
                try {
                  result = work(std::move(command), entry);
                } catch (...) {
                  drop(caller, name, entry);
                  result = result_of(refusal_of_exception());
                }
                OwnedSession left{.unused = std::exchange(entry.owned.unused, {})};
                release(caller, name);
                done(std::move(result));
                sessions_.remove_unused(&left);
              });
}

// The copy here, or what the store has if that is of another commit.
SessionResult SharedSessions::look_at(SessionCommand command, Entry& entry) {
  OwnedSession found;
  const Result read = sessions_.find(tenant_of(command.caller), command.name, &found);
  command.expected_epoch.reset();  // it was checked; the engine counts others
  if (read.done() && found.etag == entry.owned.etag) {
    SessionResult result = ask(command);
    describe(command.caller, &result);
    return result;
  }
  if (!read.done() && read.outcome != Outcome::kNoSession) return result_of(refusal(read));
  drop(command.caller, command.name, entry);
  return read.done() ? answer_from(command, found.head) : result_of(refusal(read));
}

// The engine is asked first: it knows its own sessions and its limits.
SessionResult SharedSessions::create(SessionCommand command, const std::string& parent,
                                     Entry& entry) {
  const Identity caller = command.caller;
  const std::string name = command.name;
  if (entry.here) {
    return refused_command(
        EndReason::kExists,
        fmt::format("session \"{}\" exists: close it or choose another name", name));
  }
  if (command.state != nullptr && !command.state->adapter.name.empty()) {
    return result_of(no_adapter(command.state->adapter.name));
  }
  if (Refused refused = unusable()) return result_of(refused);
  command.durability = Durability::kNone;
  command.ttl_seconds = 0;
  if (Refused refused = place(command)) return result_of(refused);
  if (caller.limits.store_bytes != TenantLimits::kNoBytes) {
    const SessionResult placed = ask({.kind = Kind::kGet, .caller = caller, .name = name});
    Refused refused = refusal_of(placed);
    if (!refused) refused = check_share(caller, placed.sessions.front().state_bytes);
    if (refused) {
      drop(caller, name, entry);
      return result_of(refused);
    }
  }
  SessionResult result{.sessions = {SessionInfo()}};
  const Result created = create_from_engine(caller, name, parent, entry, &result.sessions.front());
  if (!created.done()) {
    drop(caller, name, entry);
    return result_of(refusal(created));
  }
  describe(caller, &result);
  return result;
}

// A session in the store with the state that the engine has.
SharedSessions::Result SharedSessions::create_from_engine(const Identity& caller,
                                                          const std::string& name,
                                                          const std::string& parent, Entry& entry,
                                                          SessionInfo* info) {
  SessionResult found = ask({.kind = Kind::kGet, .caller = caller, .name = name});
  if (found.reason == EndReason::kDone && found.sessions.front().tier != Tier::kEmpty) {
    found = ask({.kind = Kind::kExport, .caller = caller, .name = name});
  }
  if (found.reason != EndReason::kDone) return {Outcome::kFailed, found.message};
  *info = found.sessions.front();
  const auto write = [&](const RemoteSessions::Commit& commit) {
    return sessions_.create(tenant_of(caller), name, commit, &entry.owned);
  };
  Result created;
  if (found.state != nullptr) {
    created = this->write(entry, found, "", nullptr, {.parent = parent}, write);
  } else {
    const HeadRecord empty{.parent = parent, .rewind_tokens = info->rewind_tokens};
    created = write({.form = empty.form(), .record = to_text(empty)});
    if (created.outcome == Outcome::kUnknown) created = sessions_.settle(&entry.owned);
  }
  if (created.done()) set_here(entry, true);
  return created;
}

// Whichever server owns it. The copy here may be of an earlier commit.
SessionResult SharedSessions::close(SessionCommand command, Entry& entry) {
  Result closed{.outcome = Outcome::kLost};
  if (entry.here) {
    closed = sessions_.close(&entry.owned);
    drop(command.caller, command.name, entry);
  }
  for (int attempt = 0; closed.outcome == Outcome::kLost && attempt < kAttempts; ++attempt) {
    closed = sessions_.find(tenant_of(command.caller), command.name, &entry.owned);
    if (closed.done()) closed = sessions_.close(&entry.owned);
  }
  if (closed.outcome == Outcome::kUnknown) closed = sessions_.settle(&entry.owned);
  if (!closed.done()) return result_of(refusal(closed));
  return {.sessions = {{.name = command.name, .durability = Durability::kRemote}}};
}

}  // namespace recurve
