#include "server/serving/shared_sessions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <string_view>
#include <tuple>
#include <vector>

#include "server/engine/request_digest.h"
#include "server/identity/cipher.h"
#include "server/observe/log.h"
#include "server/serving/head_record.h"
#include "server/serving/server_core.h"
#include "server/serving/store_refusals.h"

namespace recurve {
namespace {

using Kind = SessionCommand::Kind;
using Outcome = RemoteSessions::Outcome;

constexpr int kMostWaiting = 4096;  // turns and commands
// Copies that were not used for so long leave the engine.
constexpr std::chrono::minutes kIdleCopy(10);
// Between tests of a store that could not be used at the start.
constexpr std::chrono::seconds kCheckInterval(5);
constexpr size_t kMostAnswerBytes = size_t{64} << 20;

}  // namespace

struct SharedTurn::State {
  const Identity caller;
  const std::string session, request, digest;
  const std::optional<uint64_t> expected_epoch;
  const std::optional<Durability> durability;

  std::mutex mutex;            // guards the members below
  std::function<void()> wake;  // empty: the call has given up
  std::optional<Begun> begun = {};
  std::optional<Committed> committed = {};
  SharedSessions::Entry* held = nullptr;  // by the turn, between two works
  RecordedAnswer answer = {};             // of the turn, once it has ended
};

SharedTurn::SharedTurn(SharedSessions& sessions, const Identity& caller, const Request& request,
                       std::function<void()> wake)
    : sessions_(sessions),
      state_(std::make_shared<State>(caller, request.session, request.id, digest_of(request),
                                     request.expected_epoch, request.durability)) {
  state_->wake = std::move(wake);
  const Refused refused = sessions_.hold(
      caller, request.session,
      [&of = sessions_, state = state_](SharedSessions::Entry& entry) { of.begin(state, entry); });
  if (!refused) return;
  const std::lock_guard lock(state_->mutex);
  state_->begun = Begun{.refused = refused};
  state_->wake();
}

SharedTurn::~SharedTurn() {
  const std::lock_guard lock(state_->mutex);
  state_->wake = nullptr;
  SharedSessions::Entry* const entry = std::exchange(state_->held, nullptr);
  if (entry == nullptr) return;
  sessions_.set_runs(*entry, false);
  sessions_.run(state_->caller.share(), [&of = sessions_, state = state_, entry] {
    of.drop(state->caller, state->session, *entry);
    of.release(state->caller, state->session);
  });
}

std::optional<SharedTurn::Begun> SharedTurn::begun() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->begun, std::nullopt);
}

void SharedTurn::commit(RecordedAnswer answer) {
  const std::lock_guard lock(state_->mutex);
  state_->answer = std::move(answer);
  state_->answer.digest = state_->digest;
  SharedSessions::Entry* const entry = std::exchange(state_->held, nullptr);
  sessions_.set_runs(*entry, false);
  sessions_.run(state_->caller.share(),
                [&of = sessions_, state = state_, entry] { of.commit(state, *entry); });
}

void SharedTurn::leave_unchanged() {
  const std::lock_guard lock(state_->mutex);
  SharedSessions::Entry* const entry = std::exchange(state_->held, nullptr);
  if (entry == nullptr) return;
  sessions_.set_runs(*entry, false);
  sessions_.release(state_->caller, state_->session);
}

std::optional<SharedTurn::Committed> SharedTurn::committed() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->committed, std::nullopt);
}

SharedSessions::SharedSessions(ObjectStore& store, StoreSeal* seal, bool is_checked,
                               int64_t most_transfers, const std::string& name, ServerCore& core)
    : core_(core),
      store_(store),
      sessions_(store, fmt::format("{}-{}", name, new_nonce().substr(0, 8)), seal),
      is_checked_(is_checked),
      transfers_(most_transfers),
      threads_(kStoreThreads, core.options.on_failure) {}

SharedSessions::~SharedSessions() = default;

ServedModel& SharedSessions::model() const { return core_.first(); }

bool SharedSessions::is_of(const ServedModel& model) const { return &model == &this->model(); }

Refused SharedSessions::hold(const Identity& caller, const std::string& name,
                             std::function<void(Entry&)> work, bool drains) {
  const std::lock_guard lock(mutex_);
  if (Refused refused = enter(caller, !drains)) return refused;
  Entry& entry = entries_[{caller.tenant, name}];
  if (std::exchange(entry.busy, true)) {
    entry.waiting.push_back({caller.share(), std::move(work)});
  } else {
    run(caller.share(), [&entry, work = std::move(work)] { work(entry); });
  }
  return {};
}

Refused SharedSessions::enter(const Identity& caller, bool bounded) {
  if (bounded && waiting_ >= kMostWaiting) return refuse(EndReason::kManyWaiting);
  Identity without_limits = caller;  // those are of its requests, and counted there
  without_limits.limits = {};
  const QueueBounds bounds =
      bounded ? core_.queue_bounds(caller, 0, kMostWaiting, waiting_) : QueueBounds();
  if (!waiting_of_.enter(without_limits, bounds)) return core_.refuse_share(caller);
  ++waiting_;
  return {};
}

void SharedSessions::leave(const Identity& caller) {
  --waiting_;
  waiting_of_.leave(caller);
}

void SharedSessions::release(const Identity& caller, const std::string& name) {
  const std::lock_guard lock(mutex_);
  leave(caller);
  const auto found = entries_.find({caller.tenant, name});
  Entry& entry = found->second;
  entry.used = Clock::now();
  if (!entry.waiting.empty()) {
    Work next = std::move(entry.waiting.front());
    entry.waiting.pop_front();
    run(next.share, [&entry, work = std::move(next.run)] { work(entry); });
    return;
  }
  entry.busy = false;
  if (!entry.here) entries_.erase(found);
}

void SharedSessions::run(TenantId share, std::function<void()> job) {
  threads_.post(std::move(job), share);
}

void SharedSessions::set_here(Entry& entry, bool here) {
  SessionInfo stored;
  if (here) stored = info_of(entry.owned.head);
  const std::lock_guard lock(mutex_);
  entry.here = here;
  entry.stored = std::move(stored);
}

void SharedSessions::set_runs(Entry& entry, bool runs) {
  const std::lock_guard lock(mutex_);
  entry.runs = runs;
}

void SharedSessions::begin(const TurnState& turn, Entry& entry) {
  SharedTurn::Begun result;
  try {
    result = begun(*turn, entry);
  } catch (...) {
    result = {.refused = refusal_of_exception()};
  }
  const bool runs = result.shared && !result.refused && !result.recorded;
  {
    const std::lock_guard lock(turn->mutex);
    if (runs && turn->wake) {
      turn->held = &entry;
      set_runs(entry, true);
    } else {
      release(turn->caller, turn->session);  // before the client may send the next one
    }
    turn->begun = std::move(result);
    if (turn->wake) turn->wake();
  }
  close_idle_copies();
}

SharedTurn::Begun SharedSessions::begun(SharedTurn::State& turn, Entry& entry) {
  const std::string& name = turn.session;
  std::optional<SharedTurn::Begun> known;
  if (entry.here) {
    known = recorded(turn, entry.owned.head);
  } else if (ask({.kind = Kind::kGet, .caller = turn.caller, .name = name}).reason ==
             EndReason::kDone) {
    known.emplace();  // a session of this server alone
  } else if (Refused refused = fetch(turn.caller, name, entry, [&] {
               return (known = recorded(turn, entry.owned.head)).has_value();
             })) {
    return {.refused = std::move(refused)};
  }
  if (known && known->shared) return *std::move(known);
  if (!entry.here) {
    if (turn.durability != Durability::kRemote) return {};
    return {.refused = refuse(
                EndReason::kInvalid,
                fmt::format("session \"{}\" does not have durability remote, but the request asks "
                            "for it: open the session with durability remote",
                            name))};
  }
  SharedTurn::Begun result{.shared = true, .commit = *entry.stored.commit};
  result.refused = check_epoch(name, turn.expected_epoch, entry.stored.epoch);
  if (!result.refused && turn.durability == Durability::kLocal) {
    result.refused = refuse(EndReason::kInvalid,
                            fmt::format("session \"{}\" has durability remote, but the request "
                                        "asks for durability local: leave it out",
                                        name));
  }
  if (!result.refused) result.refused = check_share_of_turn(turn.caller, entry.owned.head);
  return result;
}

// The recorded answer, if the last commit has answered the request; or a refusal. An id that a
// client has sent names one request.
std::optional<SharedTurn::Begun> SharedSessions::recorded(const SharedTurn::State& turn,
                                                          const SessionHead& head) {
  if (turn.request.empty() || head.request != turn.request) return std::nullopt;
  SharedTurn::Begun known{.shared = true};
  const auto fail = [&](EndReason reason, std::string why) {
    known.refused = refuse(reason, fmt::format("request \"{}\": {}", turn.request, why));
    return known;
  };
  std::string text;
  const HeadRecord record = record_of(head);
  const Result opened =
      record.answer >= 0 ? sessions_.read_blob(head, head.blobs[static_cast<size_t>(record.answer)],
                                               kMostAnswerBytes, &text)
                         : sessions_.open_answer(head, &text);
  if (!opened.done()) return fail(refusal(opened)->reason, opened.error);
  try {
    RecordedAnswer answer = recorded_answer_from(text, model().info.vocab_rows);
    if (answer.digest != turn.digest) {
      return fail(EndReason::kOtherRequest, "it was answered with other contents: use a new id");
    }
    core_.metrics.shared_turn(Metrics::TurnEnd::kRecorded);
    known.commit = commit_of(head, answer.position);
    known.recorded = std::move(answer);
    return known;
  } catch (const std::runtime_error& error) {
    return fail(EndReason::kStateLost,
                fmt::format("the recorded answer cannot be read: {}", error.what()));
  }
}

// The engine has the state of the session's head afterwards, and this server owns the session;
// unless the store has no such session, or stop() is true for its head.
Refused SharedSessions::fetch(const Identity& caller, const std::string& name, Entry& entry,
                              const std::function<bool()>& stop) {
  const Clock::time_point began = Clock::now();
  if (Refused refused = unusable()) return refused;
  for (int attempt = 1;; ++attempt) {
    const Result found = sessions_.find(tenant_of(caller), name, &entry.owned);
    if (found.outcome == Outcome::kNoSession) return {};
    if (!found.done()) return refusal(found);
    if (stop()) return {};
    SessionCommand command;
    const HeadRecord record = record_of(entry.owned.head);
    Result taken = read(caller, entry.owned.head, record, record.at(), &command);
    if (taken.done()) taken = sessions_.take(&entry.owned);
    if (taken.outcome == Outcome::kUnknown) taken = sessions_.settle(&entry.owned);
    // Its owner may have committed since the head was read, and removed what that named.
    const bool changed = taken.outcome == Outcome::kLost || taken.outcome == Outcome::kDamaged;
    if (changed && attempt < kAttempts) continue;
    if (!taken.done()) {
      core_.metrics.observe_store(Metrics::StoreCall::kTakeOver,
                                  seconds_between(began, Clock::now()), true);
      return refusal(taken);
    }
    if (Refused refused = place(command)) return refused;
    set_here(entry, true);
    core_.metrics.observe_store(Metrics::StoreCall::kTakeOver, seconds_between(began, Clock::now()),
                                false);
    log_event(LogLevel::kDebug, "session_taken",
              {{"tenant", caller.tenant_name},
               {"name", name},
               {"epoch", static_cast<int64_t>(entry.owned.head.epoch)},
               {"seconds", seconds_between(began, Clock::now())}});
    return {};
  }
}

// For a state of the head, and what is made of it.
TransferMemory::Share SharedSessions::memory_for(const SessionHead& head, const HeadRecord& record,
                                                 const HeadRecord::Mark& at) {
  const auto most = static_cast<uint64_t>(model().info.most_written_bytes);
  return transfers_.take(static_cast<int64_t>(2 * std::min(bytes_of(head, record, at), most)));
}

SharedSessions::Result SharedSessions::read_text(const SessionHead& head, int blob,
                                                 std::string* text) {
  const RemoteBlob& of = head.blobs[static_cast<size_t>(blob)];
  const Result result =
      sessions_.read_blob(head, of, static_cast<uint64_t>(model().info.most_written_bytes), text);
  if (result.done()) core_.metrics.count_store_bytes(Metrics::StoreBytes::kRead, of.bytes);
  return result;
}

// use() is called with the state of the head and with what reads its page groups, and may throw
// StateError.
SharedSessions::Result SharedSessions::read_state(const SessionHead& head, const HeadRecord& record,
                                                  const HeadRecord::Mark& at, const UseState& use) {
  std::string text;
  Result result = read_text(head, at.state, &text);
  if (!result.done()) return result;
  const std::vector<HeadRecord::Group> chain = chain_of(record, at.group);
  const auto read_group = [&](const PageGroupRef& wanted) {
    const auto group = std::ranges::find_if(
        chain, [&](const HeadRecord::Group& one) { return one.ref.id == wanted.id; });
    if (group == chain.end()) {
      throw StateError(EndReason::kStateLost,
                       fmt::format("the head does not name its page group {}", wanted.id));
    }
    std::string pages;
    result = read_text(head, group->blob, &pages);
    if (!result.done()) throw StateError(EndReason::kStateLost, result.error);
    return pages;
  };
  try {
    use(std::move(text), bytes_of(head, record, at),
        chain.empty() ? ReadGroup() : ReadGroup(read_group));
  } catch (const StateError& error) {
    if (!result.done()) return result;  // that is why
    result.error =
        fmt::format("the state of session \"{}\" cannot be used: {}", head.session, error.what());
    result.outcome =
        error.reason() == EndReason::kOtherModel ? Outcome::kOtherModel : Outcome::kDamaged;
  }
  return result;
}

// The command that gives the engine that state of the head, or none.
SharedSessions::Result SharedSessions::read(const Identity& caller, const SessionHead& head,
                                            const HeadRecord& record, const HeadRecord::Mark& at,
                                            SessionCommand* command) {
  *command = {.kind = Kind::kOpen,
              .caller = caller,
              .name = head.session,
              .ttl_seconds = 0,
              .rewind_tokens = record.rewind_tokens};
  if (at.state < 0) return {};
  const TransferMemory::Share share = memory_for(head, record, at);
  command->kind = Kind::kImport;
  const ServingInfo& info = model().info;
  Result result = read_state(
      head, record, at, [&](const std::string& text, uint64_t bytes, const ReadGroup& read_group) {
        command->state =
            read_group ? info.read_paged_state(text, bytes, read_group) : info.read_state(text);
      });
  if (!result.done() || command->state->adapter.name.empty()) return result;
  return {Outcome::kOtherModel, no_adapter(command->state->adapter.name).message};
}

// Copies that are idle make room for it.
Refused SharedSessions::place(const SessionCommand& command) {
  while (true) {
    const SessionResult result = ask(command);
    const bool full =
        result.reason == EndReason::kExhausted || result.reason == EndReason::kNoMemory;
    if (!full || !close_idlest_copy(Clock::time_point::max())) return refusal_of(result);
  }
}

void SharedSessions::commit(const TurnState& turn, Entry& entry) {
  SharedTurn::Committed result;
  try {
    result = committed(*turn, entry);
  } catch (...) {
    result = {.refused = refusal_of_exception()};
  }
  if (result.refused) drop(turn->caller, turn->session, entry);
  OwnedSession left{.unused = std::exchange(entry.owned.unused, {})};
  release(turn->caller, turn->session);
  {
    const std::lock_guard lock(turn->mutex);
    turn->committed = std::move(result);
    if (turn->wake) turn->wake();
  }
  sessions_.remove_unused(&left);
}

SharedTurn::Committed SharedSessions::committed(const SharedTurn::State& turn, Entry& entry) {
  const SessionResult exported =
      ask({.kind = Kind::kExport, .caller = turn.caller, .name = turn.session});
  if (Refused refused = refusal_of(exported)) return {.refused = std::move(refused)};
  const auto write = [&](const RemoteSessions::Commit& commit) {
    return sessions_.commit(&entry.owned, commit);
  };
  const Clock::time_point began = Clock::now();
  const Result done =
      this->write(entry, exported, turn.request, &turn.answer, record_of(entry.owned.head), write);
  count(done.outcome, seconds_between(began, Clock::now()));
  if (!done.done()) return {.refused = refusal(done)};
  set_here(entry, true);
  return {.commit = *entry.stored.commit};
}

void SharedSessions::count(Outcome commit, double seconds) {
  using Turn = Metrics::TurnEnd;
  const bool lost = commit == Outcome::kLost, done = commit == Outcome::kDone;
  core_.metrics.observe_store(Metrics::StoreCall::kCommit, seconds, !done && !lost);
  core_.metrics.shared_turn(done ? Turn::kCommitted : lost ? Turn::kOtherOwner : Turn::kFailed);
}

// What the engine has is not what the store has.
void SharedSessions::drop(const Identity& caller, const std::string& name, Entry& entry) {
  ask({.kind = Kind::kClose, .caller = caller, .name = name});
  set_here(entry, false);
}

// The copy that was not used for the longest time, if it was not since then. False: there is none.
bool SharedSessions::close_idlest_copy(Clock::time_point since) {
  Identity caller = kAnyone;
  std::string name;
  Entry* entry = nullptr;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [key, one] : entries_) {
      if (one.busy || !one.here || one.used >= since) continue;
      if (entry != nullptr && entry->used <= one.used) continue;
      entry = &one;
      std::tie(caller.tenant, name) = key;
    }
    if (entry == nullptr) return false;
    entry->busy = true;
    enter(caller, /*bounded=*/false);
  }
  drop(caller, name, *entry);
  release(caller, name);
  return true;
}

void SharedSessions::close_idle_copies() {
  while (close_idlest_copy(Clock::now() - kIdleCopy)) {
  }
}

// Why the store cannot be used: a server that starts without it tests it later.
Refused SharedSessions::unusable() {
  if (is_checked_) return {};
  const std::lock_guard lock(checking_);
  if (is_checked_) return {};
  const auto why = [](std::string_view what) {
    return refuse(EndReason::kNotStored,
                  fmt::format("--state-store cannot be used now, and sessions of durability remote "
                              "need it: {}",
                              what));
  };
  if (Clock::now() - checked_at_ < kCheckInterval) return why("try again later");
  try {
    store_.check();
    is_checked_ = true;
    log_event(LogLevel::kInfo, "state_store_usable", {});
    return {};
  } catch (const std::runtime_error& error) {
    checked_at_ = Clock::now();
    return why(error.what());
  }
}

SessionResult SharedSessions::ask(SessionCommand command) {
  const auto promised = std::make_shared<std::promise<SessionResult>>();
  command.done = [promised](SessionResult result) { promised->set_value(std::move(result)); };
  const bool absorbs = command.kind == Kind::kRewind;  // and is a request of the caller
  const Refused refused = absorbs ? core_.post_to_engine(std::move(command))
                                  : model().post_unaudited(std::move(command));
  return refused ? result_of(refused) : promised->get_future().get();
}

}  // namespace recurve
