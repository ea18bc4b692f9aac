#pragma once
#include <string>

#include "server/http/connection.h"
#include "server/http/exchange.h"
#include "server/http/page_files.h"

namespace recurve {

// What stands in the table of routes for the page: it itself, and what it is made of.
std::string get_page(const HttpContext& context, const HttpRequest& request, bool keep_alive);
std::string get_page_file(const HttpContext& context, const HttpRequest& request, bool keep_alive);

}  // namespace recurve
