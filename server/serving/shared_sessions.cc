#include "server/serving/shared_sessions.h"

#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <new>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "server/engine/request_digest.h"
#include "server/identity/tenants.h"
#include "server/observe/log.h"
#include "server/serving/server_core.h"

namespace recurve {
namespace {

using nlohmann::json;
using Kind = SessionCommand::Kind;
using Outcome = RemoteSessions::Outcome;

constexpr int kMostWaiting = 4096;  // turns and commands
// How often a head is read again because the session has changed since.
constexpr int kAttempts = 5;
// Copies that were not used for so long leave the engine.
constexpr std::chrono::minutes kIdleCopy(10);
// Between tests of a store that could not be used at the start.
constexpr std::chrono::seconds kCheckInterval(5);
// An answer of more bytes is a blob. The rest of a head is for names and other blobs.
constexpr size_t kMostAnswerInHead = size_t{256} << 10;
constexpr size_t kMostAnswerBytes = size_t{64} << 20;

std::string tenant_of(const Identity& caller) { return std::string(caller.tenant_name); }

// What a head's record says.
struct HeadRecord {
  int64_t position = 0;
  bool answer_is_blob = false;  // the last one
};

std::string to_text(const HeadRecord& record) {
  return json{{"position", record.position}, {"answer_is_blob", record.answer_is_blob}}.dump();
}

// Throws json::exception.
HeadRecord record_of(const SessionHead& head) {
  const json all = json::parse(head.record);
  return {.position = all.at("position"), .answer_is_blob = all.value("answer_is_blob", false)};
}

// The number of changes that clients see: the first commit is the session's creation.
uint64_t epoch_of(uint64_t commit) { return commit - 1; }

CommitInfo commit_of(const SessionHead& head, int64_t position) {
  return {.owner_epoch = head.epoch, .number = head.commit, .position = position};
}

Refused check_epoch(const std::string& name, const std::optional<uint64_t>& expected,
                    uint64_t commit) {
  if (!expected || *expected == epoch_of(commit)) return {};
  return refuse(EndReason::kConflict,
                fmt::format("session \"{}\" has epoch {}, expected {}: read it again", name,
                            epoch_of(commit), *expected));
}

Refused busy(const std::string& name) {
  return refuse(
      EndReason::kSessionBusy,
      fmt::format("session \"{}\" is serving a request: wait for its end or cancel it", name));
}

Refused unsupported(const std::string& name) {
  return refuse(EndReason::kUnsupported,
                fmt::format("session \"{}\" has durability remote, which has no marks, rewinds and "
                            "forks that are remote: fork it with durability none or local, or "
                            "export it and import the state under another name",
                            name));
}

SessionResult result_of(const Refused& refused) {
  return refused_command(refused->reason, refused->message);
}

Refused refusal_of_exception() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return refuse(EndReason::kNoMemory);
  } catch (const json::exception&) {
    return refuse(EndReason::kStateLost,
                  "the head of the session in the store has a record that this server cannot read: "
                  "a newer server may have written it");
  } catch (const std::exception& error) {
    log_event(LogLevel::kError, "shared_session_failed", {{"what", error.what()}});
    return refuse(EndReason::kInternal,
                  "the server could not use a session in its store because of an internal error: "
                  "see its log");
  }
}

// Why the store has refused something.
EndReason reason_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::kNoSession:
      return EndReason::kNoSession;
    case Outcome::kExists:
      return EndReason::kExists;
    case Outcome::kLost:
      return EndReason::kConflict;
    case Outcome::kDamaged:
      return EndReason::kStateLost;
    case Outcome::kSealed:
      return EndReason::kStateSealed;
    case Outcome::kOtherModel:
      return EndReason::kOtherModel;
    case Outcome::kDone:
    case Outcome::kFailed:
    case Outcome::kUnknown:
      break;
  }
  return EndReason::kNotStored;
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

std::string text_of(StateSource& source) {
  std::string text(source.bytes(), '\0');
  source.read(0, text);
  return text;
}

SessionInfo info_of(const SessionHead& head) {
  const int64_t position = record_of(head).position;
  return {.name = head.session,
          .position = position,
          .tier = position > 0 ? Tier::kDisk : Tier::kEmpty,
          .epoch = epoch_of(head.commit),
          .state_bytes = head.blobs.empty() ? 0 : static_cast<int64_t>(head.blobs.front().bytes),
          .durability = Durability::kRemote,
          .commit = commit_of(head, position)};
}

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

ServedModel& SharedSessions::model() const { return *core_.models().front(); }

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

void SharedSessions::set_here(Entry& entry, bool here, int64_t position) {
  const std::lock_guard lock(mutex_);
  entry.here = here;
  entry.commit = commit_of(entry.owned.head, position);
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
  SharedTurn::Begun result{.shared = true, .commit = entry.commit};
  result.refused = check_epoch(name, turn.expected_epoch, entry.commit.number);
  if (!result.refused && turn.durability == Durability::kLocal) {
    result.refused = refuse(EndReason::kInvalid,
                            fmt::format("session \"{}\" has durability remote, but the request "
                                        "asks for durability local: leave it out",
                                        name));
  }
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
  const Result opened = record.answer_is_blob
                            ? sessions_.read_blob(head, head.blobs.back(), kMostAnswerBytes, &text)
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
    Result taken = read(caller, entry.owned.head, &command);
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
    set_here(entry, true, record_of(entry.owned.head).position);
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

// For the state of the head, and what is made of it.
TransferMemory::Share SharedSessions::memory_for(const SessionHead& head) {
  const auto most = static_cast<uint64_t>(model().info.most_written_bytes);
  const uint64_t bytes = head.blobs.empty() ? 0 : head.blobs.front().bytes;
  return transfers_.take(static_cast<int64_t>(std::min(2 * bytes, 2 * most)));
}

SharedSessions::Result SharedSessions::read_text(const SessionHead& head, std::string* text) {
  if (head.blobs.empty()) return {Outcome::kDamaged, "the head names no state"};
  return sessions_.read_blob(head, head.blobs.front(),
                             static_cast<uint64_t>(model().info.most_written_bytes), text);
}

// The command that gives the engine the state of the head.
SharedSessions::Result SharedSessions::read(const Identity& caller, const SessionHead& head,
                                            SessionCommand* command) {
  *command = {.kind = Kind::kOpen, .caller = caller, .name = head.session, .ttl_seconds = 0};
  if (record_of(head).position == 0) return {};
  const TransferMemory::Share share = memory_for(head);
  std::string text;
  Result result = read_text(head, &text);
  if (!result.done()) return result;
  command->kind = Kind::kImport;
  try {
    command->state = model().info.read_state(text);
  } catch (const StateError& error) {
    result.error =
        fmt::format("the state of session \"{}\" cannot be used: {}", head.session, error.what());
    result.outcome =
        error.reason() == EndReason::kOtherModel ? Outcome::kOtherModel : Outcome::kDamaged;
  }
  return result;
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
  const Result done = this->write(entry, exported, turn.request, &turn.answer, write);
  count(done.outcome, seconds_between(began, Clock::now()));
  if (!done.done()) return {.refused = refusal(done)};
  set_here(entry, true, turn.answer.position);
  return {.commit = entry.commit};
}

void SharedSessions::count(Outcome commit, double seconds) {
  using Turn = Metrics::TurnEnd;
  const bool lost = commit == Outcome::kLost, done = commit == Outcome::kDone;
  core_.metrics.observe_store(Metrics::StoreCall::kCommit, seconds, !done && !lost);
  core_.metrics.shared_turn(done ? Turn::kCommitted : lost ? Turn::kOtherOwner : Turn::kFailed);
}

// Writes an exported state, and the answer that ended in it if there is one.
SharedSessions::Result SharedSessions::write(
    Entry& entry, const SessionResult& exported, const std::string& request,
    const RecordedAnswer* answer,
    const std::function<Result(const RemoteSessions::Commit&)>& write) {
  const TransferMemory::Share share =
      transfers_.take(2 * static_cast<int64_t>(exported.state->bytes()));
  const std::string state = text_of(*exported.state);
  const std::string_view state_parts[] = {state};
  HeadRecord record{.position = exported.sessions.front().position};
  RemoteSessions::Commit commit{.request = request, .added = {state_parts}};
  std::string text;
  std::string_view answer_parts[1];
  if (answer != nullptr && !request.empty()) {
    text = to_text(*answer);
    record.answer_is_blob = text.size() > kMostAnswerInHead;
    if (record.answer_is_blob) {
      answer_parts[0] = text;
      commit.added.emplace_back(answer_parts);
    } else {
      commit.answer = text;
    }
  }
  commit.record = to_text(record);
  Result result = write(commit);
  if (result.outcome == Outcome::kUnknown) result = sessions_.settle(&entry.owned);
  return result;
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
  if (Refused refused = model().post_unaudited(std::move(command))) return result_of(refused);
  return promised->get_future().get();
}

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
  if (kind == Kind::kFork && command.durability == Durability::kRemote) {
    return unsupported(command.name);
  }
  if (kind == Kind::kList) return post_described(std::move(command));
  bool here = false, runs = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find({command.caller.tenant, command.name});
    if (found != entries_.end() && found->second.here) {
      here = true;
      runs = found->second.runs;
      if (Refused refused = check_epoch(command.name, std::exchange(command.expected_epoch, {}),
                                        found->second.commit.number)) {
        return refused;
      }
    }
  }
  if (here) return post_on_copy(std::move(command), runs);
  audit_result(&command);
  SessionCommand asked = command;
  command.done = [this, asked = std::move(asked)](SessionResult result) mutable {
    if (result.reason != EndReason::kNoSession) return asked.done(std::move(result));
    const Identity caller = asked.caller;
    {
      std::unique_lock lock(mutex_);
      if (Refused refused = enter(caller)) {
        lock.unlock();
        return asked.done(result_of(refused));
      }
    }
    run(caller.share(),
        [this, caller, asked = std::move(asked), result = std::move(result)]() mutable {
          look_in_store(std::move(asked), std::move(result));
          const std::lock_guard lock(mutex_);
          leave(caller);
        });
  };
  return kind == Kind::kRewind ? core_.post_to_engine(std::move(command))
                               : model().post_unaudited(std::move(command));
}

Refused SharedSessions::post_on_copy(SessionCommand command, bool runs) {
  switch (command.kind) {
    case Kind::kGet:
    case Kind::kAccept:
      if (runs) return post_described(std::move(command));
      return hold_for(std::move(command), &SharedSessions::look_at);
    case Kind::kExport:
      audit_result(&command);
      return hold_for(std::move(command), &SharedSessions::look_at);
    case Kind::kClose:
      audit_result(&command);
      return hold_for(std::move(command), &SharedSessions::close);
    case Kind::kFork:
      if (!command.durability) return unsupported(command.name);
      return runs ? busy(command.name) : core_.post_to_engine(std::move(command));
    default:
      return unsupported(command.name);
  }
}

Refused SharedSessions::post_described(SessionCommand command) {
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
    info.durability = Durability::kRemote;
    info.commit = found->second.commit;
    info.epoch = epoch_of(info.commit->number);
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
    if (read.outcome == Outcome::kNoSession) return done(std::move(otherwise));
    if (!read.done()) return done(result_of(refusal(read)));
    if (Refused refused = check_epoch(command.name, command.expected_epoch, found.head.commit)) {
      return done(result_of(refused));
    }
    if (command.kind == Kind::kClose) {
      command.done = done;
      command.expected_epoch.reset();
      const Refused refused = hold_for(std::move(command), &SharedSessions::close);
      if (refused) done(result_of(refused));
      return;
    }
    done(answer_from(command, found.head));
  } catch (...) {
    done(result_of(refusal_of_exception()));
  }
}

SessionResult SharedSessions::answer_from(const SessionCommand& command, const SessionHead& head) {
  SessionResult result{.sessions = {info_of(head)}};
  if (command.kind == Kind::kGet || command.kind == Kind::kAccept) return result;
  if (command.kind != Kind::kExport) return result_of(unsupported(command.name));
  if (result.sessions.front().position == 0) {
    return refused_command(
        EndReason::kEmptySession,
        fmt::format("session \"{}\" is empty: it has no state yet", command.name));
  }
  const TransferMemory::Share share = memory_for(head);
  std::string text;
  const Result read = read_text(head, &text);
  if (!read.done()) return result_of(refusal(read));
  result.state = std::make_shared<TextSource>(std::move(text));
  return result;
}

Refused SharedSessions::post_create(SessionCommand command) {
  if (command.ttl_seconds.value_or(0) > 0) {
    return invalid("ttl_seconds",
                   "a session of durability remote does not end by itself: leave ttl_seconds out");
  }
  if (command.rewind_tokens > 0) {
    return invalid("rewind_tokens",
                   "a session of durability remote has no rewinds: leave rewind_tokens out");
  }
  audit_result(&command);
  return hold_for(std::move(command), &SharedSessions::create);
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
                  result = (this->*work)(std::move(command), entry);
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
SessionResult SharedSessions::create(SessionCommand command, Entry& entry) {
  const Identity caller = command.caller;
  const std::string name = command.name;
  if (entry.here) {
    return refused_command(
        EndReason::kExists,
        fmt::format("session \"{}\" exists: close it or choose another name", name));
  }
  if (Refused refused = unusable()) return result_of(refused);
  command.durability = Durability::kNone;
  command.ttl_seconds = 0;
  if (Refused refused = place(command)) return result_of(refused);
  SessionResult result{.sessions = {SessionInfo()}};
  const Result created = create_from_engine(caller, name, entry, &result.sessions.front());
  if (!created.done()) {
    drop(caller, name, entry);
    return result_of(refusal(created));
  }
  describe(caller, &result);
  return result;
}

// A session in the store with the state that the engine has.
SharedSessions::Result SharedSessions::create_from_engine(const Identity& caller,
                                                          const std::string& name, Entry& entry,
                                                          SessionInfo* info) {
  SessionResult found = ask({.kind = Kind::kGet, .caller = caller, .name = name});
  if (found.reason == EndReason::kDone && found.sessions.front().position > 0) {
    found = ask({.kind = Kind::kExport, .caller = caller, .name = name});
  }
  if (found.reason != EndReason::kDone) return {Outcome::kFailed, found.message};
  *info = found.sessions.front();
  const auto write = [&](const RemoteSessions::Commit& commit) {
    return sessions_.create(tenant_of(caller), name, commit, &entry.owned);
  };
  Result created;
  if (found.state != nullptr) {
    created = this->write(entry, found, "", nullptr, write);
  } else {
    created = write({.record = to_text(HeadRecord())});
    if (created.outcome == Outcome::kUnknown) created = sessions_.settle(&entry.owned);
  }
  if (created.done()) set_here(entry, true, info->position);
  return created;
}

std::vector<SessionInfo> SharedSessions::sessions_of_engine(const Identity& caller) {
  std::vector<SessionInfo> all;
  SessionCommand list{.kind = Kind::kList, .caller = caller, .limit = kMaxPageSize};
  while (true) {
    SessionResult page = ask(list);
    if (page.sessions.empty()) return all;
    list.other = page.sessions.back().name;
    describe(caller, &page);
    for (SessionInfo& info : page.sessions) {
      if (info.durability != Durability::kRemote) all.push_back(std::move(info));
    }
    if (!page.more) return all;
  }
}

SharedSessions::Moved SharedSessions::move_to_store(Clock::time_point deadline) {
  struct One {
    Identity caller;
    SessionInfo info;
  };
  std::vector<One> all;
  for (const Tenant& tenant : known_tenants()) {
    Identity caller = kAnyone;
    caller.tenant = tenant.id;
    caller.tenant_name = tenant.name;
    for (SessionInfo& info : sessions_of_engine(caller)) all.push_back({caller, std::move(info)});
  }
  std::ranges::sort(all, std::ranges::greater(),
                    [](const One& one) { return one.info.state_bytes; });
  std::vector<std::future<std::optional<SessionResult>>> results;
  for (One& one : all) {
    const auto promised = std::make_shared<std::promise<std::optional<SessionResult>>>();
    results.push_back(promised->get_future());
    const auto work = [=, this](Entry& entry) {
      std::optional<SessionResult> result;
      if (Clock::now() < deadline) result = moved(one.caller, one.info, entry);
      release(one.caller, one.info.name);
      promised->set_value(std::move(result));
    };
    hold(one.caller, one.info.name, work, /*drains=*/true);
  }
  Moved sum;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::optional<SessionResult> result = results[i].get();
    const bool done = result && result->reason == EndReason::kDone;
    (done ? sum.moved : result ? sum.failed : sum.late) += 1;
    if (done) continue;
    log_event(LogLevel::kWarning, "session_not_moved",
              {{"tenant", all[i].caller.tenant_name},
               {"name", all[i].info.name},
               {"why", result ? std::string_view(result->message) : "there was no time for it"}});
  }
  return sum;
}

// A durable session leaves --state-dir: a server that starts with the folder must not continue it
// next to another one.
SessionResult SharedSessions::moved(const Identity& caller, const SessionInfo& of, Entry& entry) {
  SessionResult result{.sessions = {of}};
  try {
    if (Refused refused = unusable()) return result_of(refused);
    const Result created = create_from_engine(caller, of.name, entry, &result.sessions.front());
    if (!created.done()) return result_of(refusal(created));
    if (of.durability == Durability::kLocal) drop(caller, of.name, entry);
  } catch (...) {
    return result_of(refusal_of_exception());
  }
  return result;
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

Refused SharedSessions::refusal(const Result& result) {
  if (result.done()) return {};
  return refuse(reason_of(result.outcome), result.error);
}

}  // namespace recurve
