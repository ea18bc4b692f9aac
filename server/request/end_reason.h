#pragma once
#include <array>
#include <cstddef>
#include <string_view>

namespace recurve {

// Status codes of gRPC by number (google.rpc.Code), and their names.
enum class Code {
  kOk = 0,
  kCancelled = 1,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};
inline constexpr std::array<std::string_view, 17> kCodeNames = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

// Why a request or a session command ended. kEnds has a row for each.
enum class EndReason {
  kDone,  // the command succeeded
  // An answer is complete. Numbered as v1::FinishReason.
  kLength,      // max_tokens reached, also 0: the prompt is absorbed
  kEos,         // the model ended the text
  kStopId,      // a stop id of the request was sampled
  kStopString,  // the text contains a stop string of the request
  // The client or the clock ended it.
  kCancelled,   // by Abort, or TokenStream::cancel()
  kClientGone,  // the client disconnected
  kDeadline,
  kStalled,  // the client sent no more of a streamed prompt, or read no answer, for too long
  // The request is wrong, or not allowed.
  kInvalid,
  kConstraint,    // masks of its constraint take too long, or no token fits
  kForeignState,  // an imported state is none, damaged, of a later version, or has invalid numbers
  kUnauthenticated,
  kForbidden,  // the role of the caller does not allow it
  kUnsupported,
  kNotFound,  // other than a session
  kNoSession,
  kExists,        // the name is taken
  kOtherRequest,  // a request of that id, with other contents, was answered
  // The session does not allow it now.
  kSessionBusy,   // it is serving another request
  kEmptySession,  // it has absorbed nothing
  kConflict,      // its epoch is not the expected one
  kOtherModel,    // its state is of another model
  kStateSealed,   // the key of its state is missing
  kNewerState,    // a newer server has written it
  kStateLost,     // its state is damaged
  // The server has no capacity, or is not available.
  kExhausted,
  kRequestMemory,  // --request-memory is used up
  kManyWaiting,    // a queue is full
  kOverloaded,     // the first token would be too late
  kNoMemory,       // an allocation failed
  kNotStored,      // the answer could not be written to disk and is rolled back
  kLoading,
  kClosed,       // the server is draining and takes no request
  kDraining,     // the server shut down before the answer was complete
  kFolderLost,   // the folder of durable sessions was deleted or replaced
  kModelFailed,  // the model's engine has failed, and others serve
  kUnloading,    // the model is being unloaded, and others serve
  kNotLoaded,    // a model that is to be loaded or unloaded, for the reason in the message
  kInternal,     // invalid logits of the model, or a bug
  kFailed,       // the engine, and with it the server, has failed
};

// Retry advice to the client. kUnset: its library decides by the code.
enum class Retry { kUnset, kNever, kLater };

struct EndRow {
  EndReason reason;
  Code code;
  int http;  // status
  Retry retry;
  std::string_view name;  // in logs, traces and records of answers
  const char* sentence;   // default message
  // Label of recurve_requests_finished_total; null: not counted, the engine did not start it.
  const char* metric = nullptr;
  const char* finish_reason = nullptr;  // of OpenAI's API; null: no answer
};

constexpr auto end_rows() {
  using R = EndReason;
  using C = Code;
  return std::to_array<EndRow>({
      {R::kDone, C::kOk, 200, Retry::kUnset, "done", ""},
      {R::kLength, C::kOk, 200, Retry::kUnset, "length", "", "length", "length"},
      {R::kEos, C::kOk, 200, Retry::kUnset, "eos", "", "eos", "stop"},
      {R::kStopId, C::kOk, 200, Retry::kUnset, "stop_id", "", "stop_id", "stop"},
      {R::kStopString, C::kOk, 200, Retry::kUnset, "stop_string", "", "stop_string", "stop"},
      {R::kCancelled, C::kCancelled, 499, Retry::kUnset, "cancelled", "the request was cancelled",
       "cancelled"},
      {R::kClientGone, C::kCancelled, 499, Retry::kUnset, "client_gone", "the client disconnected"},
      {R::kDeadline, C::kDeadlineExceeded, 504, Retry::kUnset, "deadline",
       "the call's deadline has passed", "deadline"},
      {R::kStalled, C::kDeadlineExceeded, 504, Retry::kUnset, "stalled",
       "the client sent or read nothing for too long", "stalled"},
      {R::kInvalid, C::kInvalidArgument, 400, Retry::kUnset, "invalid",
       "the request cannot be served"},
      {R::kConstraint, C::kInvalidArgument, 400, Retry::kUnset, "constraint",
       "the constraint cannot be followed", "constraint"},
      {R::kForeignState, C::kInvalidArgument, 400, Retry::kUnset, "foreign_state",
       "this server cannot use the state"},
      {R::kUnauthenticated, C::kUnauthenticated, 401, Retry::kUnset, "unauthenticated",
       "the key is missing, unknown or expired: "
       "send the header \"authorization: Bearer KEY\""},
      {R::kForbidden, C::kPermissionDenied, 403, Retry::kUnset, "forbidden",
       "the role of the key does not allow this"},
      {R::kUnsupported, C::kUnimplemented, 501, Retry::kUnset, "unsupported",
       "this server does not support it"},
      {R::kNotFound, C::kNotFound, 404, Retry::kUnset, "not_found", "not found"},
      {R::kNoSession, C::kNotFound, 404, Retry::kUnset, "no_session", "there is no such session"},
      {R::kExists, C::kAlreadyExists, 409, Retry::kNever, "exists", "the name is taken"},
      {R::kOtherRequest, C::kAlreadyExists, 409, Retry::kNever, "other_request",
       "a request of that id with other contents was answered"},
      {R::kSessionBusy, C::kFailedPrecondition, 409, Retry::kNever, "session_busy",
       "the session is serving another request"},
      {R::kEmptySession, C::kFailedPrecondition, 409, Retry::kNever, "empty_session",
       "the session is empty"},
      {R::kConflict, C::kAborted, 409, Retry::kUnset, "conflict", "the session has changed since"},
      {R::kOtherModel, C::kFailedPrecondition, 409, Retry::kNever, "other_model",
       "the session's state is of another model"},
      {R::kStateSealed, C::kFailedPrecondition, 409, Retry::kNever, "state_sealed",
       "the key of the session's state is missing"},
      {R::kNewerState, C::kFailedPrecondition, 409, Retry::kNever, "newer_state",
       "a newer server has written the session: update this one"},
      {R::kStateLost, C::kDataLoss, 500, Retry::kUnset, "state_lost",
       "the session's state is damaged"},
      {R::kExhausted, C::kResourceExhausted, 429, Retry::kLater, "exhausted",
       "the server has no capacity for it now: try again later"},
      {R::kRequestMemory, C::kResourceExhausted, 429, Retry::kLater, "request_memory",
       "the memory for requests is used up: try again later"},
      {R::kManyWaiting, C::kResourceExhausted, 429, Retry::kLater, "many_waiting",
       "too many requests are waiting: try again later"},
      {R::kOverloaded, C::kResourceExhausted, 429, Retry::kLater, "overloaded",
       "overloaded: the request would wait for too long: try again later"},
      {R::kNoMemory, C::kResourceExhausted, 429, Retry::kLater, "no_memory",
       "out of memory: try again later"},
      {R::kNotStored, C::kResourceExhausted, 429, Retry::kLater, "not_kept",
       "the answer could not be stored and was rolled back", "error"},
      {R::kLoading, C::kUnavailable, 503, Retry::kUnset, "loading",
       "the server is loading its model: try again soon"},
      {R::kClosed, C::kUnavailable, 503, Retry::kUnset, "closed",
       "the server is draining: use another one"},
      {R::kDraining, C::kUnavailable, 503, Retry::kUnset, "draining",
       "the server is shutting down: use another one", "shutdown"},
      {R::kFolderLost, C::kUnavailable, 503, Retry::kUnset, "folder_lost",
       "the folder of durable sessions was deleted or replaced"},
      {R::kModelFailed, C::kUnavailable, 503, Retry::kUnset, "model_failed",
       "the model has failed: see the server's log"},
      {R::kUnloading, C::kUnavailable, 503, Retry::kUnset, "unloading",
       "the model is being unloaded: use another one"},
      {R::kNotLoaded, C::kFailedPrecondition, 409, Retry::kNever, "not_loaded",
       "the model cannot be loaded or unloaded"},
      {R::kInternal, C::kInternal, 500, Retry::kUnset, "internal",
       "the model returned an invalid result", "error"},
      {R::kFailed, C::kInternal, 500, Retry::kUnset, "failed",
       "the server has failed and is shutting down: use another one", "error"},
  });
}
inline constexpr auto kEnds = end_rows();

constexpr const EndRow& row_of(EndReason reason) { return kEnds[static_cast<size_t>(reason)]; }
constexpr bool rows_are_in_order() {
  for (const EndRow& row : kEnds) {
    if (&row_of(row.reason) != &row) return false;
  }
  return kEnds.size() == static_cast<size_t>(EndReason::kFailed) + 1;
}
static_assert(rows_are_in_order());

constexpr bool is_answer(EndReason reason) { return row_of(reason).finish_reason != nullptr; }
// The engine did not start the request.
constexpr bool is_refusal(EndReason reason) { return row_of(reason).metric == nullptr; }

}  // namespace recurve
