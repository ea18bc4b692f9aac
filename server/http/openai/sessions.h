#pragma once
#include <vector>

#include "server/http/routes.h"
#include "server/request/session_command.h"

namespace recurve {

// Sessions as resources: server/http/README.md has their objects.
std::vector<Route> session_routes(ServerCore& core);

// The commands of these routes, from the names of a target, its query or its body. They throw
// BadField if a field cannot be read.
using ToSessionCommand = SessionCommand(const HttpRequest& request);
ToSessionCommand to_open, to_get, to_list, to_close, to_fork, to_mark, to_unmark, to_rewind,
    to_accept;

}  // namespace recurve
