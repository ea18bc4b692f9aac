// Sessions that cannot go on as they are: their states are of another model, or what was stored of
// them is damaged. What is still there can be accepted.
#include <fmt/format.h>

#include <algorithm>

#include "server/session/session_store.h"

namespace recurve {

// The mark of the last position whose state may still be read, where that of the session cannot.
const std::pair<const std::string, Snapshot>* SessionStore::last_whole_mark(
    const Session& session) const {
  const std::pair<const std::string, Snapshot>* last = nullptr;
  for (const auto& mark : session.marks) {
    const Snapshot& at = mark.second;
    const bool lost = !at.image && at.stored &&
                      (at.stored == session.at.stored || archive_->store().is_gone(*at.stored));
    if (!lost && (last == nullptr || at.position > last->second.position)) last = &mark;
  }
  return last;
}

int64_t SessionStore::position_still_there(const Session& session) const {
  if (!session.state_lost) return session.at.position;
  const auto* mark = last_whole_mark(session);
  return mark == nullptr ? 0 : mark->second.position;
}

std::optional<SessionResult> SessionStore::unusable(const Session& session) const {
  if (session.other_model) {
    return SessionResult{
        .reason = EndReason::kOtherModel,
        .message = fmt::format("session \"{}\": {}: serve that model, or close the session",
                               session.name, *session.other_model)};
  }
  if (!session.in_doubt && !session.state_lost) return std::nullopt;
  const char* lost = session.state_lost ? "its state is damaged" : "acknowledged turns may be lost";
  return SessionResult{
      .reason = EndReason::kStateLost,
      .message = fmt::format(
          "session \"{}\": {}; position {} can be read: accept it, or close the session",
          session.name, lost, position_still_there(session))};
}

std::optional<SessionResult> SessionStore::without_adapter(const Session& session) const {
  const BoundAdapter* const adapter = session.binding.adapter.get();
  if (adapter == nullptr || adapter->weights != nullptr) return std::nullopt;
  const bool changed = std::ranges::any_of(
      limits_.adapters, [&](const auto& one) { return one->id.name == adapter->id.name; });
  return refused_command(
      EndReason::kOtherModel,
      fmt::format("session \"{}\" is computed with the adapter \"{}\", {}: start the server with "
                  "--adapter {}=DIR, or close the session",
                  session.name, adapter->id.name,
                  changed ? "whose files have changed since" : "which this server does not have",
                  adapter->id.name));
}

// It can be closed, and what is lost can be accepted, or left behind.
std::optional<SessionResult> SessionStore::refuse_unusable(const Session& session,
                                                           SessionCommand::Kind kind) const {
  using Kind = SessionCommand::Kind;
  if (kind == Kind::kClose) return std::nullopt;
  if (kind == Kind::kAccept && !session.other_model) return std::nullopt;
  const bool leaves_it = kind == Kind::kRewind || kind == Kind::kUnmark;
  if (leaves_it && !session.other_model && !session.in_doubt) return std::nullopt;
  return unusable(session);
}

// The state is read first: what is accepted is there.
SessionResult SessionStore::accept(Session& session, const SessionCommand& command,
                                   Clock::time_point now) {
  if (!session.in_doubt && !session.state_lost) return described(session, now);
  if (session.tier() == Tier::kDisk && !session.state_lost) {
    const auto waits = bring_for_command(session);
    if (!waits) {
      return {.reason = EndReason::kExhausted,
              .message = "not enough host memory to read the session's state: try again later"};
    }
    if (!session.state_lost) return *waits;
  }
  if (session.state_lost) {
    const auto* mark = last_whole_mark(session);
    return go_back(session, mark == nullptr ? Snapshot{} : mark->second, command, now);
  }
  Proposal proposal{.at = session.at, .marks = session.marks};
  return commit_then_tell(session, std::move(proposal), command, now);
}

}  // namespace recurve
