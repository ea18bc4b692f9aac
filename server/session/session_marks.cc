// Marks of sessions, and sessions that go back: to a mark, or to a token between marks.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/check.h"
#include "server/session/session_store.h"
#include "server/session/state_transfer.h"

namespace recurve {
namespace {

SessionResult no_mark(const Session& session, const std::string& mark) {
  return refused_command(EndReason::kNotFound,
                         fmt::format("session \"{}\" has no mark \"{}\"", session.name, mark));
}

SessionResult no_memory_to_go_back() {
  return refused_command(EndReason::kExhausted,
                         "not enough host memory for the state to rewind to: try again later, or "
                         "raise --session-memory");
}

// Of those at most at the position, the last one that the log goes on from; null: none. The state
// that has absorbed nothing is one of them.
const Snapshot* last_on_way(const std::map<std::string, Snapshot>& marks, const TokenLog& log,
                            int64_t position) {
  static const Snapshot kNothing;
  std::vector<const Snapshot*> before;
  for (const auto& [name, mark] : marks) {
    if (mark.position >= log.begin() && mark.position <= position) before.push_back(&mark);
  }
  std::ranges::sort(before, {}, &Snapshot::position);
  const Snapshot* last = log.has_all() ? &kNothing : nullptr;
  uint64_t digest = log.first_digest();
  int64_t at = log.begin();
  for (const Snapshot* mark : before) {
    digest = log.next_digest(digest, std::exchange(at, mark->position), mark->position);
    if (mark->log.digest() == digest) last = mark;
  }
  return last;
}

// The state, if it is of at most that position and the log goes on from it.
std::optional<Snapshot> on_way(const ReadyState& ready, const TokenLog& log, int64_t position) {
  const auto* const state = dynamic_cast<const ImportedState*>(&ready);
  CHECK(state != nullptr);
  const int64_t end = state->at.position;
  if (end < log.begin() || end > position) return std::nullopt;
  const uint64_t digest = log.next_digest(log.first_digest(), log.begin(), end);
  if (state->log(log.most()).digest() != digest) return std::nullopt;
  Snapshot at = state->at;
  at.log = log.until(end);
  return at;
}

}  // namespace

// Of a durable session, and where nothing has been absorbed, it has no state in host memory.
SessionResult SessionStore::mark(Session& session, const SessionCommand& command,
                                 Clock::time_point now) {
  const auto before = session.marks.find(command.other);
  const bool is_new = before == session.marks.end();
  const bool had_state = !is_new && (before->second.image || before->second.stored);
  const bool has_state = !session.durable() && session.tier() != Tier::kEmpty;
  if (is_new || (has_state && !had_state)) {
    const int64_t state = has_state ? state_memory(session.at.position) : 0;
    if (auto full = no_room(command.other, {}, state, session.at.log.most(), 0)) return *full;
  }
  if (session.durable()) {
    Proposal proposal{.at = session.at, .marks = session.marks};
    Snapshot& here = proposal.marks[command.other] = session.at;
    here.image.reset();
    here.history = {};
    return commit_then_tell(session, std::move(proposal), command, now);
  }
  Snapshot here = snapshot(session);
  session.marks[command.other] = std::move(here);
  touch(session, now);
  return described(session, now);
}

SessionResult SessionStore::unmark(Session& session, const SessionCommand& command,
                                   Clock::time_point now) {
  if (!session.marks.contains(command.other)) return no_mark(session, command.other);
  if (session.durable()) {
    Proposal proposal{.at = session.at, .marks = session.marks};
    proposal.marks.erase(command.other);
    return commit_then_tell(session, std::move(proposal), command, now);
  }
  session.marks.erase(command.other);
  touch(session, now);
  return described(session, now);
}

// Of one that is on the disk alone, state and tokens are read. Tokens that cannot be read are left
// out.
SessionResult SessionStore::export_mark(Session& session, const SessionCommand& command,
                                        Clock::time_point now) {
  const auto found = session.marks.find(command.other);
  if (found == session.marks.end()) return no_mark(session, command.other);
  const Snapshot& mark = found->second;
  if (mark.image) return exported(session, mark, command, now);
  if (!mark.stored) {
    return refused_command(EndReason::kEmptySession,
                           fmt::format("mark \"{}\" of session \"{}\" is empty: it has no state",
                                       command.other, session.name));
  }
  const int64_t memory = state_memory(mark.position);
  const Room room = make_room(memory, For::kReturn);
  if (room == Room::kComing) return {.progress = SessionResult::Progress::kWaiting};
  if (room == Room::kNone) return no_memory_to_go_back();
  session.replay_memory = memory;
  set_busy(session, true);
  const auto finish = [this, &session, now, command](const Snapshot& at,
                                                     const Archive::Loaded& loaded) {
    session.replay_memory = 0;
    set_busy(session, false);
    SessionResult result = refused_command(
        loaded.reason, fmt::format("the state of mark \"{}\" of session \"{}\" cannot be read: {}",
                                   command.other, session.name, loaded.error));
    if (loaded.error.empty()) result = exported(session, at, command, now);
    if (result.progress == SessionResult::Progress::kEnded) command.done(std::move(result));
  };
  read(mark, [this, finish, at = mark](const Archive::Loaded& loaded, const StateImage& image) {
    Snapshot found = at;
    found.image = image;
    found.history = TokenHistory::of(loaded.header.history);
    if (!loaded.error.empty() || found.log.is_loaded()) return finish(found, loaded);
    archive_->load_tokens(found.tokens, found.log.begin(), wanted_.vocab,
                          [finish, found](const Archive::Loaded& tokens) {
                            Snapshot whole = found;
                            if (tokens.error.empty()) whole.log.load(tokens.header.tokens);
                            finish(whole, {});
                          });
  });
  return {.progress = SessionResult::Progress::kCommitting};
}

SessionResult SessionStore::rewind(Session& session, const SessionCommand& command,
                                   Clock::time_point now) {
  if (command.position) return rewind_to(session, command, now);
  const auto mark = session.marks.find(command.other);
  if (mark == session.marks.end()) return no_mark(session, command.other);
  return go_back(session, mark->second, command, now);
}

SessionResult SessionStore::go_back(Session& session, Snapshot back, const SessionCommand& command,
                                    Clock::time_point now) {
  session.not_loaded.reset();  // that state is left behind
  if (const int64_t most = session.at.log.most(); back.log.most() != most) {
    back.log = TokenLog::unknown(most, back.position);
    back.tokens.clear();
  }
  const bool empties = !back.image && !back.stored && session.tier() != Tier::kEmpty;
  if (empties) {
    if (auto full = no_room_to_empty(session)) return *full;
  }
  if (session.durable()) {
    session.emptying = empties;
    update(session);
    Proposal proposal{.at = std::move(back), .marks = session.marks, .changes = true};
    return commit_then_tell(session, std::move(proposal), command, now);
  }
  take_slot(session);
  session.at = std::move(back);
  session.state_lost = false;
  session.last_used = now;
  session.disk_refused = false;
  ++session.epoch;
  update(session, outside_slot(session.at));
  return described(session, now);
}

// A durable session leaves its slot, as its state is on the disk too: that is what it returns to if
// this breaks off.
SessionResult SessionStore::rewind_to(Session& session, const SessionCommand& command,
                                      Clock::time_point now) {
  const int64_t position = *command.position;
  const TokenLog& log = session.at.log;
  if (position > session.at.position) {
    return refused_command(
        EndReason::kInvalid,
        fmt::format("position must be at most {}, which session \"{}\" has absorbed, got {}",
                    session.at.position, session.name, position));
  }
  if (position == session.at.position && !session.state_lost) return described(session, now);
  const InitialState* const initial = session.binding.initial_state.get();
  if (initial != nullptr && position < initial->position) {
    return refused_command(
        EndReason::kInvalid,
        fmt::format("position must be at least {}, at which session \"{}\" began with the initial "
                    "state \"{}\", got {}",
                    initial->position, session.name, initial->id.name, position));
  }
  if (position == 0) return go_back(session, {}, command, now);
  if (log.most() == 0) {
    return refused_command(
        EndReason::kNotFound,
        fmt::format("session \"{}\" stores none of its tokens: rewind to a mark, or open "
                    "sessions with rewind_tokens",
                    session.name));
  }
  if (position >= log.begin() && !log.is_loaded()) {  // they come with the state
    const auto waits = bring_for_command(session);
    return waits ? *waits : no_memory_to_go_back();
  }
  std::optional<Snapshot> given;
  if (command.state != nullptr) {
    given = on_way(*command.state, log, position);
    if (!given) {
      return refused_command(
          EndReason::kForeignState,
          fmt::format("the state is not of the text of session \"{}\"", session.name));
    }
  }
  const Snapshot* begin = given                    ? &*given
                          : position < log.begin() ? nullptr
                                                   : last_on_way(session.marks, log, position);
  if (begin == nullptr) {
    return refused_command(
        EndReason::kNotFound,
        fmt::format("session \"{}\" stores its tokens from {} on, and has no mark of this text "
                    "between there and {}: rewind to a mark, or raise rewind_tokens",
                    session.name, log.begin(), position));
  }
  if (begin->position == position) return go_back(session, *begin, command, now);
  if (auto missing = without_adapter(session)) return *std::move(missing);
  if (session.durable()) {
    const int64_t shared = begin->stored ? archive_->store().pages_of(*begin->stored).count : 0;
    const int64_t more =
        disk_for(session.durability, position, shared, log.most()) - session.share.disk;
    if (disk_reserved() + more > limits_.disk_bytes) {
      return refused_command(
          EndReason::kExhausted,
          fmt::format(
              "the state of session \"{}\" at {} takes {} bytes more of the disk than it has "
              "reserved: close sessions or marks, or raise --state-disk",
              session.name, position, more));
    }
    take_slot(session);
    session.at.image.reset();
    rest_outside_slot(session);
  }
  const bool reads = begin->stored && !begin->image;
  if (reads || session.durable() || session.tier() == Tier::kDisk) {
    const int64_t memory = state_memory(session.at.position);
    const Room room = make_room(memory, For::kReturn);
    if (room == Room::kComing) return {.progress = SessionResult::Progress::kWaiting};
    if (room == Room::kNone) return no_memory_to_go_back();
    session.replay_memory = memory;
  }
  replay_ = std::make_unique<Replay>(
      Replay{.session = &session, .begin = *begin, .log = log.until(position)});
  if (const TokenLog::Entry next = log.at(position); next.was_sampled()) replay_->pending = next.id;
  session.not_loaded.reset();
  set_busy(session, true);
  return {.progress = SessionResult::Progress::kAbsorbing};
}

void SessionStore::read(const Snapshot& begin, StateCache::OnRead done) {
  cache_.read(StateCache::Owner::kSessions, begin.stored, wanted_, begin.position, std::move(done));
}

void SessionStore::end_replay(Replay& replay, std::optional<StateSlot> slot, Snapshot at,
                              Clock::time_point now) {
  Session& session = *replay.session;
  const int64_t absorbed = at.position - replay.begin.position;
  session.replay_memory = 0;
  session.base = replay.base;
  session.base_tokens = replay.begin.position;
  const auto tell = [this, &session, now, absorbed, done = replay.command.done](
                        std::optional<CommitInfo>, const std::string& error) {
    SessionResult result = described(session, now);
    if (!error.empty()) result = refused_command(EndReason::kExhausted, error);
    result.absorbed = absorbed;
    if (done) done(std::move(result));
  };
  if (session.durable()) {
    Proposal proposal{.at = std::move(at)};
    return commit_answer(session, std::move(slot), replay.begin.stored, std::move(proposal), tell);
  }
  take_slot(session);
  session.state_lost = false;
  check_in(session, std::move(slot), std::move(at), now);
  tell(std::nullopt, {});
}

void SessionStore::cancel_replay(Replay& replay, SessionResult why) {
  Session& session = *replay.session;
  session.replay_memory = 0;
  if (session.durable()) {
    roll_back(session, session.last_used);
  } else {
    set_busy(session, false);
  }
  if (replay.command.done) replay.command.done(std::move(why));
}

}  // namespace recurve
