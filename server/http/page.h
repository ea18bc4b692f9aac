#pragma once
#include <span>
#include <string>
#include <string_view>

#include "server/http/connection.h"
#include "server/http/exchange.h"

namespace recurve {

// A file of the page, as it was when the server was built: see embed.cmake.
struct PageFile {
  std::string_view name;
  std::string_view etag;  // with its quotes
  std::string_view content;
};
extern const std::span<const PageFile> kPageFiles;

// What stands in the table of routes for the page: it itself, and what it is made of.
std::string get_page(const HttpContext& context, const HttpRequest& request, bool keep_alive);
std::string get_page_file(const HttpContext& context, const HttpRequest& request, bool keep_alive);

}  // namespace recurve
