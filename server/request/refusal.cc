#include "server/request/refusal.h"

namespace recurve {

Refusal refuse(EndReason reason, std::string message) {
  if (message.empty()) message = row_of(reason).sentence;
  return {.reason = reason, .message = std::move(message)};
}

Refused refusal_of(const StreamEnd& end) {
  if (is_answer(end.reason)) return {};
  Refusal refusal = refuse(end.reason, end.message);
  if (end.reason == EndReason::kOverloaded) refusal.retry_seconds = end.retry_seconds;
  return refusal;
}

Refused refusal_of(const SessionResult& result) {
  if (result.reason == EndReason::kDone) return {};
  return refuse(result.reason, result.message);
}

std::string_view code_name(const Refused& refusal) {
  return kCodeNames[static_cast<size_t>(refusal ? refusal->row().code : Code::kOk)];
}

}  // namespace recurve
