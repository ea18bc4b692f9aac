#pragma once
#include <string>

#include "server/http/connection.h"
#include "server/http/exchange.h"

namespace recurve {

// What stands in the table of routes for the server itself; the load as the page shows it, in the
// terms of the proto's Load and ServerInfo.
std::string get_load(const HttpContext& context, const HttpRequest& request, bool keep_alive);
std::string get_metrics(const HttpContext& context, const HttpRequest& request, bool keep_alive);

}  // namespace recurve
