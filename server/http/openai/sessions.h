#pragma once
#include <memory>

#include "server/http/connection.h"
#include "server/http/exchange.h"

namespace recurve {

// Sessions as resources: the shapes are in server/http/README.md.
using Begin = std::shared_ptr<Exchange>(HttpContext& context,
                                        std::shared_ptr<Connection> connection,
                                        HttpRequest request);
Begin open_session, get_session, list_sessions, close_session, fork_session, mark_session,
    unmark_session, rewind_session, accept_session;

}  // namespace recurve
