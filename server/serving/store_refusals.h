#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "server/object_store/remote_sessions.h"
#include "server/request/refusal.h"
#include "server/request/session_command.h"

namespace recurve {

// Why a request or command on a shared session is refused. Without a value: it is not.
Refused refusal(const RemoteSessions::Result& result);
// Of the exception that is being handled.
Refused refusal_of_exception();
Refused check_epoch(const std::string& name, const std::optional<uint64_t>& expected,
                    uint64_t epoch);
Refused check_ttl_of_shared(const SessionCommand& command);
// Of a session that has the adapter of that name.
Refusal no_adapter(const std::string& name);
// Of a command on a mark that the session does not have.
SessionResult no_mark(const SessionCommand& command);
// A sentence, of a session that has kMostMarks.
std::string too_many_marks(const std::string& session);
SessionResult result_of(const Refused& refused);

}  // namespace recurve
