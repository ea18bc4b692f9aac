#include "server/rpc/status.h"

#include <array>

namespace recurve {

using grpc::StatusCode;

grpc::Status status_of(const Ending& ending) {
  const auto status = [&](StatusCode code, const char* otherwise) {
    return grpc::Status(code, ending.message.empty() ? otherwise : ending.message);
  };
  switch (ending.why) {
    case Finish::kLength:
    case Finish::kEos:
    case Finish::kStopId:
    case Finish::kStopString:
      return {};
    case Finish::kCancelled:
      return status(StatusCode::CANCELLED, "the request was cancelled");
    case Finish::kDeadline:
      return status(StatusCode::DEADLINE_EXCEEDED, "the call's deadline has passed");
    case Finish::kStalled:
      return status(StatusCode::DEADLINE_EXCEEDED, "nothing was sent or read for too long");
    case Finish::kNoSession:
      return status(StatusCode::NOT_FOUND, "there is no such session");
    case Finish::kSessionBusy:
      return status(StatusCode::FAILED_PRECONDITION, "the session serves another request");
    case Finish::kInvalid:
      return status(StatusCode::INVALID_ARGUMENT, "the request cannot be served");
    case Finish::kOverloaded:
      return status(StatusCode::RESOURCE_EXHAUSTED, "it would wait for too long: try again later");
    case Finish::kNoMemory:
      return status(StatusCode::RESOURCE_EXHAUSTED,
                    "the system gives no memory for the request: try again later");
    case Finish::kDraining:
      return status(StatusCode::UNAVAILABLE, "the server is going down");
    case Finish::kFailed:
      return status(StatusCode::INTERNAL, "the server has failed and ends: use another one");
    case Finish::kInternal:
      break;
  }
  return status(StatusCode::INTERNAL, "the model gave no usable result");
}

grpc::Status status_of(const SessionResult& result) {
  switch (result.status) {
    case SessionResult::Status::kOk:
      return {};
    case SessionResult::Status::kNotFound:
      return {StatusCode::NOT_FOUND, result.message};
    case SessionResult::Status::kBusy:
      return {StatusCode::FAILED_PRECONDITION, result.message};
    case SessionResult::Status::kExists:
      return {StatusCode::ALREADY_EXISTS, result.message};
    case SessionResult::Status::kFull:
      return {StatusCode::RESOURCE_EXHAUSTED, result.message};
    case SessionResult::Status::kInvalid:
      return {StatusCode::INVALID_ARGUMENT, result.message};
    case SessionResult::Status::kUnavailable:
      return {StatusCode::UNAVAILABLE, result.message.empty()
                                           ? "the server is going down: use another one"
                                           : result.message};
  }
  return {StatusCode::INTERNAL, result.message};
}

Metrics::Finish metric_of(Finish why) {
  switch (why) {
    case Finish::kLength:
      return Metrics::Finish::kLength;
    case Finish::kEos:
      return Metrics::Finish::kEos;
    case Finish::kStopId:
      return Metrics::Finish::kStopId;
    case Finish::kStopString:
      return Metrics::Finish::kStopString;
    case Finish::kCancelled:
      return Metrics::Finish::kCancelled;
    case Finish::kDeadline:
      return Metrics::Finish::kDeadline;
    case Finish::kStalled:
      return Metrics::Finish::kStalled;
    case Finish::kDraining:
      return Metrics::Finish::kShutdown;
    default:
      return Metrics::Finish::kError;
  }
}

std::string_view name_of(StatusCode code) {
  static constexpr std::array<std::string_view, 17> kNames = {"OK",
                                                              "CANCELLED",
                                                              "UNKNOWN",
                                                              "INVALID_ARGUMENT",
                                                              "DEADLINE_EXCEEDED",
                                                              "NOT_FOUND",
                                                              "ALREADY_EXISTS",
                                                              "PERMISSION_DENIED",
                                                              "RESOURCE_EXHAUSTED",
                                                              "FAILED_PRECONDITION",
                                                              "ABORTED",
                                                              "OUT_OF_RANGE",
                                                              "UNIMPLEMENTED",
                                                              "INTERNAL",
                                                              "UNAVAILABLE",
                                                              "DATA_LOSS",
                                                              "UNAUTHENTICATED"};
  return code >= 0 && code < static_cast<int>(kNames.size()) ? kNames[code] : "UNKNOWN";
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
    case Finish::kNoMemory:
      return "no_memory";
    case Finish::kDraining:
      return "draining";
    case Finish::kFailed:
      return "failed";
    case Finish::kInternal:
      break;
  }
  return "internal";
}

}  // namespace recurve
