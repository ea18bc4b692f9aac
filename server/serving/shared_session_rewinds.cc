// Rewinds of sessions of durability remote: one to a mark makes the head name that as the state;
// one to a token has the engine absorb tokens, and commits what it then has, as a turn does.
#include <fmt/format.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "server/serving/head_record.h"
#include "server/serving/server_core.h"
#include "server/serving/shared_sessions.h"
#include "server/serving/store_refusals.h"

namespace recurve {
namespace {

using Kind = SessionCommand::Kind;

// What there is to say of a rewind to the position without the state; nothing: it is on the way.
std::optional<SessionResult> known_of(const SessionCommand& command, const SessionHead& head) {
  const HeadRecord record = record_of(head);
  if (Refused refused = check_epoch(command.name, command.expected_epoch, epoch_of(head, record))) {
    return result_of(refused);
  }
  const int64_t position = *command.position;
  if (position == record.position) return SessionResult{.sessions = {info_of(head)}};
  if (position > record.position) {
    return refused_command(
        EndReason::kInvalid,
        fmt::format("position must be at most {}, which session \"{}\" has absorbed, got {}",
                    record.position, command.name, position));
  }
  if (record.rewind_tokens > 0 || position == 0) return std::nullopt;
  return refused_command(EndReason::kNotFound,
                         fmt::format("session \"{}\" stores none of its tokens: rewind to a mark, "
                                     "or open sessions with rewind_tokens",
                                     command.name));
}

}  // namespace

SessionResult SharedSessions::rewind(SessionCommand command, Entry& entry) {
  drop_if_replaced(command, entry);
  return command.position.value_or(0) > 0 ? rewind_to_token(command, entry)
                                          : rewind_to_mark(command, entry);
}

// Or to the beginning. The state is read and checked before the change.
SessionResult SharedSessions::rewind_to_mark(const SessionCommand& command, Entry& entry) {
  std::optional<SessionCommand> state;
  const auto change = [&](const SessionHead& head,
                          HeadRecord* record) -> std::optional<SessionResult> {
    HeadRecord::Mark to;
    if (command.position) {
      if (auto known = known_of(command, head)) return known;
    } else if (const auto mark = record->marks.find(command.other); mark != record->marks.end()) {
      to = mark->second;
    } else {
      return no_mark(command);
    }
    const Result result = read(command.caller, head, *record, to, &state.emplace());
    if (!result.done()) return result_of(refusal(result));
    record->position = to.position;
    record->state = to.state;
    record->group = to.group;
    record->tokens_from = to.tokens_from;
    record->answer = -1;
    return std::nullopt;
  };
  SessionResult result = change_head(command, entry, /*keeps_answer=*/false, change);
  if (result.reason != EndReason::kDone || !state) return result;
  if (entry.here) drop(command.caller, command.name, entry);
  if (!place(*state)) set_here(entry, true);
  return result;
}

SessionResult SharedSessions::rewind_to_token(const SessionCommand& command, Entry& entry) {
  std::optional<SessionResult> known;
  const auto is_known = [&] {
    known = known_of(command, entry.owned.head);
    return known.has_value();
  };
  if (entry.here) {
    is_known();
  } else if (Refused refused = fetch(command.caller, command.name, entry, is_known)) {
    return result_of(refused);
  }
  if (known) return *std::move(known);
  if (!entry.here) {
    return refused_command(EndReason::kNoSession,
                           fmt::format("there is no session \"{}\"", command.name));
  }
  if (Refused refused = check_share_of_turn(command.caller, entry.owned.head)) {
    return result_of(refused);
  }
  const SessionResult absorbed = absorb(command, entry.owned.head);
  if (absorbed.reason != EndReason::kDone) return absorbed;
  const SessionResult exported =
      ask({.kind = Kind::kExport, .caller = command.caller, .name = command.name});
  Refused refused = refusal_of(exported);
  if (!refused) {
    refused = refusal(write(entry, exported, "", nullptr, record_of(entry.owned.head),
                            [&](const RemoteSessions::Commit& commit) {
                              return sessions_.commit(&entry.owned, commit);
                            }));
  }
  if (refused) {
    drop(command.caller, command.name, entry);
    return result_of(refused);
  }
  set_here(entry, true);
  return {.sessions = {info_of(entry.owned.head)}, .absorbed = absorbed.absorbed};
}

// From the last mark on the way, which the engine can tell: it knows the tokens. Where there is
// none, from nothing. If the engine refuses all, its copy is as it was.
SessionResult SharedSessions::absorb(const SessionCommand& command, const SessionHead& head) {
  const HeadRecord record = record_of(head);
  // One of those that name the same state.
  std::map<std::pair<int64_t, int>, HeadRecord::Mark, std::greater<>> marks;
  for (const auto& [name, mark] : record.marks) {
    const bool may_be = mark.position >= record.tokens_from && mark.position <= *command.position;
    if (may_be && mark.state >= 0) marks.emplace(std::pair(mark.position, mark.state), mark);
  }
  SessionCommand asked{.kind = Kind::kRewind,
                       .caller = command.caller,
                       .name = command.name,
                       .position = command.position};
  for (const auto& [at, mark] : marks) {
    SessionCommand state;
    const Result result = read(command.caller, head, record, mark, &state);
    if (!result.done()) return result_of(refusal(result));
    asked.state = std::move(state.state);
    SessionResult absorbed = ask(asked);
    if (absorbed.reason != EndReason::kForeignState) return absorbed;
  }
  asked.state = nullptr;
  return ask(std::move(asked));
}

}  // namespace recurve
