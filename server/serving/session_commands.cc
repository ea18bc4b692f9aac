#include <utility>

#include "server/serving/access.h"
#include "server/serving/bind.h"
#include "server/serving/served_model.h"

namespace recurve {
namespace {

using Kind = SessionCommand::Kind;

Refused check_ttl(const std::optional<double>& seconds) {
  if (!seconds || (*seconds >= 0 && *seconds <= kMaxTtlSeconds)) return {};
  return invalid("ttl_seconds", "ttl_seconds must be in [0, {}], got {}", kMaxTtlSeconds, *seconds);
}

Refused check_page_size(int limit) {
  if (limit >= 1 && limit <= kMaxPageSize) return {};
  return invalid("page_size", "page_size must be in [1, {}], got {}", kMaxPageSize, limit);
}

Refused check_rewind_tokens(int64_t tokens) {
  if (tokens >= 0 && tokens <= kMostRewindTokens) return {};
  return invalid("rewind_tokens", "rewind_tokens must be in [0, {}], got {}", kMostRewindTokens,
                 tokens);
}

// A rewind is to a mark, or to a position.
Refused check_target(const SessionCommand& command) {
  if (!command.position) return check_name("mark", command.other);
  if (!command.other.empty()) {
    return invalid("position", "a rewind has either mark or position, got both");
  }
  if (*command.position >= 0) return {};
  return invalid("position", "position must be at least 0, got {}", *command.position);
}

// The name of the command in the audit log; empty: it is not logged.
std::string_view audit_event(const SessionCommand& command) {
  const bool transfers = command.kind == Kind::kExport || command.kind == Kind::kImport;
  if (command.name.starts_with(kReserved) && !transfers) return {};
  switch (command.kind) {
    case Kind::kOpen:
      return "session_open";
    case Kind::kFork:
      return "session_fork";
    case Kind::kClose:
      return "session_close";
    case Kind::kExport:
      return "session_export";
    case Kind::kImport:
      return "session_import";
    default:
      return {};
  }
}

}  // namespace

Refused read_state(const ServingInfo& info, std::string_view written, bool cut,
                   SessionCommand* command) {
  try {
    if (cut) {
      info.check_front(written);
      return invalid("data", "a state of this model has at most {} bytes, got more",
                     info.most_written_bytes);
    }
    command->state = info.read_state(written);
    return {};
  } catch (const StateError& error) {
    // The client's copy is damaged, and nothing that the server stores.
    const bool is_damaged = error.reason() == EndReason::kStateLost;
    return refuse(is_damaged ? EndReason::kForeignState : error.reason(),
                  fmt::format("the state cannot be imported: {}", error.what()));
  }
}

Refused validate(SessionCommand* command) {
  const Kind kind = command->kind;
  if (kind == Kind::kList) return check_page_size(command->limit);
  std::string& new_name = kind == Kind::kFork ? command->other : command->name;
  const bool creates = kind == Kind::kOpen || kind == Kind::kFork || kind == Kind::kImport;
  if (creates && new_name.empty()) new_name = make_name("s-");
  Refused refused = check_name("name", command->name);
  if (!refused && kind == Kind::kFork) refused = check_name("new_name", command->other);
  if (!refused && (kind == Kind::kMark || kind == Kind::kUnmark)) {
    refused = check_name("mark", command->other);
  }
  if (!refused && kind == Kind::kRewind) refused = check_target(*command);
  if (!refused) refused = check_rewind_tokens(command->rewind_tokens);
  if (!refused) refused = check_ttl(command->ttl_seconds);
  return refused;
}

void audit_result(SessionCommand* command) {
  const std::string_view what = audit_event(*command);
  if (what.empty()) return;
  const std::string& name = command->kind == Kind::kFork ? command->other : command->name;
  command->done = [what, name, caller = command->caller,
                   done = std::move(command->done)](SessionResult result) {
    audit(what, auditee(caller), code_name(refusal_of(result)), name);
    if (row_of(result.reason).code == Code::kResourceExhausted)
      audit("limit", auditee(caller), "RESOURCE_EXHAUSTED", what);
    if (done) done(std::move(result));
  };
}

Refused ServedModel::post(SessionCommand command) {
  audit_result(&command);
  return post_unaudited(std::move(command));
}

Refused ServedModel::post_unaudited(SessionCommand command) {
  if (Refused refused = bind(text, &command)) return refused;
  switch (queue.post(std::move(command))) {
    case AdmissionQueue::Admission::kAccepted:
      return {};
    case AdmissionQueue::Admission::kClosed:
      return refuse(EndReason::kClosed);
    case AdmissionQueue::Admission::kFull:
      break;
  }
  return refuse(EndReason::kManyWaiting);
}

}  // namespace recurve
