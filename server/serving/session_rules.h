#pragma once

#include "server/request/admission_queue.h"
#include "server/request/refusal.h"

namespace recurve {

inline constexpr double kMaxTtlSeconds = 1e9;
inline constexpr int kDefaultPageSize = 100;
inline constexpr int kMaxPageSize = 1000;

// Checks what a client says of sessions, as far as it can be known without the engine, and names a
// session to be made that has no name.
Refused prepare(SessionCommand* command);

// Hands a command to the engine, which calls its done() unless this refuses.
Refused post(AdmissionQueue& queue, SessionCommand command);

}  // namespace recurve
