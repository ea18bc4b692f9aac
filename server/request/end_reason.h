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

// Why a request, or a command about a session, has ended. kEnds has a row for each.
enum class EndReason {
  kDone,  // the command is carried out
  // An answer is complete. Numbered as v1::FinishReason.
  kLength,      // max_tokens reached, or a prompt that was only to be scored is absorbed
  kEos,         // the model ended the text
  kStopId,      // a stop id of the request was sampled
  kStopString,  // the text has a stop string of the request
  // The client or the clock ended it.
  kCancelled,   // by Abort, or TokenStream::cancel()
  kClientGone,  // the client disconnected
  kDeadline,
  kStalled,  // for too long the client sent nothing of a streamed prompt, or read no answer
  // The request is wrong, or not allowed.
  kInvalid,
  kConstraint,    // its constraint takes too long to follow, or no token fits it
  kForeignState,  // an imported state has a wrong form, a later version or impossible numbers
  kUnauthenticated,
  kForbidden,  // the role of the caller does not allow it
  kUnsupported,
  kNotFound,  // what it names, other than a session
  kNoSession,
  kExists,        // the name is taken
  kOtherRequest,  // a request of that id was answered, and asked for something else
  // The session does not allow it now.
  kSessionBusy,   // it serves another request
  kEmptySession,  // it has absorbed nothing
  kConflict,      // it has another epoch than was expected
  kOtherModel,    // its state is of another model
  kStateSealed,   // the key of its state is missing
  kStateLost,     // its state is damaged
  // The server has no capacity, or is not available.
  kExhausted,
  kRequestMemory,  // the requests under way hold what --request-memory allows
  kManyWaiting,    // too many wait for a thread, or for the engine
  kOverloaded,     // the first token would come too late
  kNoMemory,       // the system gives no memory
  kNotStored,      // the answer could not be written to the disk, and is taken back
  kLoading,
  kClosed,      // the server drains, and takes no request
  kDraining,    // the server goes down before the answer is complete
  kFolderLost,  // the folder of durable sessions was deleted or replaced
  kInternal,    // the model gave no usable distribution (NaN), or a bug
  kFailed,      // the engine has failed, and with it the server
};

// What a client should do about it. Unsaid: its library decides by the code.
enum class Retry { kUnsaid, kNever, kLater };

struct EndRow {
  EndReason reason;
  Code code;
  int http;  // status
  Retry retry;
  std::string_view name;  // in logs, traces and records of answers
  const char* sentence;   // the message, where nothing more exact is known
  // Label of recurve_requests_finished_total; null: not counted, the engine has not begun with it.
  const char* metric = nullptr;
  const char* finish_reason = nullptr;  // of OpenAI's API; null: no answer
};

constexpr auto end_rows() {
  using R = EndReason;
  using C = Code;
  return std::to_array<EndRow>({
      {R::kDone, C::kOk, 200, Retry::kUnsaid, "done", ""},
      {R::kLength, C::kOk, 200, Retry::kUnsaid, "length", "", "length", "length"},
      {R::kEos, C::kOk, 200, Retry::kUnsaid, "eos", "", "eos", "stop"},
      {R::kStopId, C::kOk, 200, Retry::kUnsaid, "stop_id", "", "stop_id", "stop"},
      {R::kStopString, C::kOk, 200, Retry::kUnsaid, "stop_string", "", "stop_string", "stop"},
      {R::kCancelled, C::kCancelled, 499, Retry::kUnsaid, "cancelled", "the request was cancelled",
       "cancelled"},
      {R::kClientGone, C::kCancelled, 499, Retry::kUnsaid, "client_gone", "the client went away"},
      {R::kDeadline, C::kDeadlineExceeded, 504, Retry::kUnsaid, "deadline",
       "the call's deadline has passed", "deadline"},
      {R::kStalled, C::kDeadlineExceeded, 504, Retry::kUnsaid, "stalled",
       "nothing was sent or read for too long", "stalled"},
      {R::kInvalid, C::kInvalidArgument, 400, Retry::kUnsaid, "invalid",
       "the request cannot be served"},
      {R::kConstraint, C::kInvalidArgument, 400, Retry::kUnsaid, "constraint",
       "the constraint cannot be followed", "constraint"},
      {R::kForeignState, C::kInvalidArgument, 400, Retry::kUnsaid, "foreign_state",
       "this is no state for this server"},
      {R::kUnauthenticated, C::kUnauthenticated, 401, Retry::kUnsaid, "unauthenticated",
       "a key is needed that this server knows and that has not expired: "
       "send the header \"authorization: Bearer KEY\""},
      {R::kForbidden, C::kPermissionDenied, 403, Retry::kUnsaid, "forbidden",
       "the role of the key does not allow this"},
      {R::kUnsupported, C::kUnimplemented, 501, Retry::kUnsaid, "unsupported",
       "this server does not support it"},
      {R::kNotFound, C::kNotFound, 404, Retry::kUnsaid, "not_found", "not found"},
      {R::kNoSession, C::kNotFound, 404, Retry::kUnsaid, "no_session", "there is no such session"},
      {R::kExists, C::kAlreadyExists, 409, Retry::kNever, "exists", "the name is taken"},
      {R::kOtherRequest, C::kAlreadyExists, 409, Retry::kNever, "other_request",
       "a request of that id asked for something else"},
      {R::kSessionBusy, C::kFailedPrecondition, 409, Retry::kNever, "session_busy",
       "the session serves another request"},
      {R::kEmptySession, C::kFailedPrecondition, 409, Retry::kNever, "empty_session",
       "the session has absorbed nothing"},
      {R::kConflict, C::kAborted, 409, Retry::kUnsaid, "conflict",
       "the session has changed meanwhile"},
      {R::kOtherModel, C::kFailedPrecondition, 409, Retry::kNever, "other_model",
       "the session's state is of another model"},
      {R::kStateSealed, C::kFailedPrecondition, 409, Retry::kNever, "state_sealed",
       "the key of the session's state is missing"},
      {R::kStateLost, C::kDataLoss, 500, Retry::kUnsaid, "state_lost",
       "the session's state is damaged"},
      {R::kExhausted, C::kResourceExhausted, 429, Retry::kLater, "exhausted",
       "the server has no capacity for it now: try again later"},
      {R::kRequestMemory, C::kResourceExhausted, 429, Retry::kLater, "request_memory",
       "the requests under way fill the memory that there is for them: try again later"},
      {R::kManyWaiting, C::kResourceExhausted, 429, Retry::kLater, "many_waiting",
       "too many requests wait: try again later"},
      {R::kOverloaded, C::kResourceExhausted, 429, Retry::kLater, "overloaded",
       "it would wait for too long: try again later"},
      {R::kNoMemory, C::kResourceExhausted, 429, Retry::kLater, "no_memory",
       "the system gives no memory for the request: try again later"},
      {R::kNotStored, C::kResourceExhausted, 429, Retry::kLater, "not_kept",
       "the answer could not be kept, and is taken back", "error"},
      {R::kLoading, C::kUnavailable, 503, Retry::kUnsaid, "loading",
       "the server is loading its model: try again soon"},
      {R::kClosed, C::kUnavailable, 503, Retry::kUnsaid, "closed",
       "the server is draining: use another one"},
      {R::kDraining, C::kUnavailable, 503, Retry::kUnsaid, "draining",
       "the server is going down: use another one", "shutdown"},
      {R::kFolderLost, C::kUnavailable, 503, Retry::kUnsaid, "folder_lost",
       "the folder of durable sessions was deleted or replaced"},
      {R::kInternal, C::kInternal, 500, Retry::kUnsaid, "internal",
       "the model gave no usable result", "error"},
      {R::kFailed, C::kInternal, 500, Retry::kUnsaid, "failed",
       "the server has failed and ends: use another one", "error"},
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
// Whether the engine has not begun with the request.
constexpr bool is_refusal(EndReason reason) { return row_of(reason).metric == nullptr; }

}  // namespace recurve
