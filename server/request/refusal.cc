#include "server/request/refusal.h"

namespace recurve {

using Code = Refusal::Code;

Refused refusal_of(const Ending& ending) {
  const auto refusal = [&](Code code, const char* otherwise) {
    return Refusal{.code = code, .message = ending.message.empty() ? otherwise : ending.message};
  };
  switch (ending.why) {
    case Finish::kLength:
    case Finish::kEos:
    case Finish::kStopId:
    case Finish::kStopString:
      return {};
    case Finish::kCancelled:
      return refusal(Code::kCancelled, "the request was cancelled");
    case Finish::kDeadline:
      return refusal(Code::kDeadline, "the call's deadline has passed");
    case Finish::kStalled:
      return refusal(Code::kDeadline, "nothing was sent or read for too long");
    case Finish::kNoSession:
      return refusal(Code::kNotFound, "there is no such session");
    case Finish::kSessionBusy:
      return refusal(Code::kBusy, "the session serves another request");
    case Finish::kInvalid:
      return refusal(Code::kInvalid, "the request cannot be served");
    case Finish::kConstraint:
      return refusal(Code::kInvalid, "the constraint cannot be followed");
    case Finish::kOverloaded: {
      Refusal full = refusal(Code::kExhausted, "it would wait for too long: try again later");
      full.retry_seconds = ending.retry_seconds;
      return full;
    }
    case Finish::kConflict:
      return refusal(Code::kConflict, "the session has changed meanwhile");
    case Finish::kOtherRequest:
      return refusal(Code::kExists, "a request of that id asked for something else");
    case Finish::kStateLost:
      return refusal(Code::kDataLoss, "the session's state is damaged");
    case Finish::kStateSealed:
      return refusal(Code::kBusy, "the key of the session's state is missing");
    case Finish::kOtherModel:
      return refusal(Code::kBusy, "the session's state is of another model");
    case Finish::kFolderLost:
      return refusal(Code::kUnavailable, "the folder of durable sessions was deleted or replaced");
    case Finish::kNotKept:
      return refusal(Code::kExhausted, "the answer could not be kept, and is taken back");
    case Finish::kNoMemory:
      return refusal(Code::kExhausted,
                     "the system gives no memory for the request: try again later");
    case Finish::kDraining:
      return refusal(Code::kUnavailable, "the server is going down");
    case Finish::kFailed:
      return refusal(Code::kInternal, "the server has failed and ends: use another one");
    case Finish::kInternal:
      break;
  }
  return refusal(Code::kInternal, "the model gave no usable result");
}

Refused refusal_of(const SessionResult& result) {
  const auto refusal = [&](Code code) { return Refusal{.code = code, .message = result.message}; };
  switch (result.status) {
    case SessionResult::Status::kOk:
      return {};
    case SessionResult::Status::kNotFound:
      return refusal(Code::kNotFound);
    case SessionResult::Status::kBusy:
    case SessionResult::Status::kNothing:
    case SessionResult::Status::kSealed:
    case SessionResult::Status::kOtherModel:
      return refusal(Code::kBusy);
    case SessionResult::Status::kExists:
      return refusal(Code::kExists);
    case SessionResult::Status::kFull:
      return refusal(Code::kExhausted);
    case SessionResult::Status::kInvalid:
      return refusal(Code::kInvalid);
    case SessionResult::Status::kConflict:
      return refusal(Code::kConflict);
    case SessionResult::Status::kUnsupported:
      return refusal(Code::kUnsupported);
    case SessionResult::Status::kLost:
      return refusal(Code::kDataLoss);
    case SessionResult::Status::kLater:
    case SessionResult::Status::kWait:
      break;
    case SessionResult::Status::kUnavailable:
      if (!result.message.empty()) return refusal(Code::kUnavailable);
      return Refusal{.code = Code::kUnavailable,
                     .message = "the server is going down: use another one"};
  }
  return refusal(Code::kInternal);
}

bool is_refusal(Finish why) {
  return why == Finish::kConflict || why == Finish::kOtherRequest || why == Finish::kStateLost ||
         why == Finish::kStateSealed || why == Finish::kOtherModel || why == Finish::kFolderLost ||
         why == Finish::kNoSession || why == Finish::kSessionBusy || why == Finish::kInvalid ||
         why == Finish::kOverloaded || why == Finish::kNoMemory;
}

std::string_view code_name(const Refused& refusal) {
  if (!refusal) return "OK";
  switch (refusal->code) {
    case Code::kCancelled:
      return "CANCELLED";
    case Code::kInvalid:
      return "INVALID_ARGUMENT";
    case Code::kDeadline:
      return "DEADLINE_EXCEEDED";
    case Code::kNotFound:
      return "NOT_FOUND";
    case Code::kExists:
      return "ALREADY_EXISTS";
    case Code::kForbidden:
      return "PERMISSION_DENIED";
    case Code::kStranger:
      return "UNAUTHENTICATED";
    case Code::kExhausted:
      return "RESOURCE_EXHAUSTED";
    case Code::kBusy:
      return "FAILED_PRECONDITION";
    case Code::kConflict:
      return "ABORTED";
    case Code::kDataLoss:
      return "DATA_LOSS";
    case Code::kUnsupported:
      return "UNIMPLEMENTED";
    case Code::kInternal:
      return "INTERNAL";
    case Code::kUnavailable:
      break;
  }
  return "UNAVAILABLE";
}

std::string_view name_of(Finish why) {
  switch (why) {
    case Finish::kLength:
      return "length";
    case Finish::kEos:
      return "eos";
    case Finish::kStopId:
      return "stop_id";
    case Finish::kStopString:
      return "stop_string";
    case Finish::kCancelled:
      return "cancelled";
    case Finish::kDeadline:
      return "deadline";
    case Finish::kStalled:
      return "stalled";
    case Finish::kNoSession:
      return "no_session";
    case Finish::kSessionBusy:
      return "session_busy";
    case Finish::kInvalid:
      return "invalid";
    case Finish::kOverloaded:
      return "overloaded";
    case Finish::kConflict:
      return "conflict";
    case Finish::kOtherRequest:
      return "other_request";
    case Finish::kStateLost:
      return "state_lost";
    case Finish::kStateSealed:
      return "state_sealed";
    case Finish::kOtherModel:
      return "other_model";
    case Finish::kFolderLost:
      return "folder_lost";
    case Finish::kNotKept:
      return "not_kept";
    case Finish::kNoMemory:
      return "no_memory";
    case Finish::kDraining:
      return "draining";
    case Finish::kConstraint:
      return "constraint";
    case Finish::kFailed:
      return "failed";
    case Finish::kInternal:
      break;
  }
  return "internal";
}

}  // namespace recurve
