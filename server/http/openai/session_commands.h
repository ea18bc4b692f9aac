#pragma once
#include "server/http/exchange.h"
#include "server/request/session_command.h"

namespace recurve {

// What the engine is asked when a request comes to a resource of sessions. Each reads the names of
// the request's target, its query or its body, as far as its resource has them, and throws BadField
// where a field cannot be read.
using ToSessionCommand = SessionCommand(const HttpRequest& request);
ToSessionCommand to_open, to_get, to_list, to_close, to_fork, to_mark, to_unmark, to_rewind,
    to_accept;

}  // namespace recurve
