#include "server/serving/store_refusals.h"

#include <fmt/format.h>

#include <new>

#include "server/observe/log.h"
#include "server/serving/head_record.h"
#include "server/serving/validate.h"

namespace recurve {
namespace {

using Outcome = RemoteSessions::Outcome;

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
    case Outcome::kNewer:
      return EndReason::kNewerState;
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

}  // namespace

Refused refusal(const RemoteSessions::Result& result) {
  if (result.done()) return {};
  return refuse(reason_of(result.outcome), result.error);
}

Refused refusal_of_exception() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return refuse(EndReason::kNoMemory);
  } catch (const BadHeadRecord& error) {
    return refuse(EndReason::kStateLost, error.what());
  } catch (const std::exception& error) {
    log_event(LogLevel::kError, "shared_session_failed", {{"what", error.what()}});
    return refuse(EndReason::kInternal,
                  "the server could not use a session in its store because of an internal error: "
                  "see its log");
  }
}

Refused check_epoch(const std::string& name, const std::optional<uint64_t>& expected,
                    uint64_t epoch) {
  if (!expected || *expected == epoch) return {};
  return refuse(EndReason::kConflict,
                fmt::format("session \"{}\" has epoch {}, expected {}: read it again", name, epoch,
                            *expected));
}

Refused check_ttl_of_shared(const SessionCommand& command) {
  if (command.ttl_seconds.value_or(0) <= 0) return {};
  return invalid("ttl_seconds",
                 "a session of durability remote does not end by itself: leave ttl_seconds out");
}

Refusal no_adapter(const std::string& name) {
  return invalid("adapter",
                 "a session of durability remote has no adapter, and this one would have \"{}\": "
                 "choose another durability",
                 cut(name));
}

SessionResult no_mark(const SessionCommand& command) {
  return refused_command(EndReason::kNotFound, fmt::format("session \"{}\" has no mark \"{}\"",
                                                           command.name, command.other));
}

std::string too_many_marks(const std::string& session) {
  return fmt::format("session \"{}\" has {} marks, which is the most: remove some", session,
                     kMostMarks);
}

SessionResult result_of(const Refused& refused) {
  return refused_command(refused->reason, refused->message);
}

}  // namespace recurve
