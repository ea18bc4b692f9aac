#pragma once
#include <span>
#include <string_view>

#include "server/http/routes.h"

namespace recurve {

// /health and /metrics.
HttpApi server_api(ServerCore& core);
// /v1/load: the load in the terms of the proto's Load and ServerInfo, for operators and the page;
// and /version.
HttpApi load_api(const ServerCore& core);
// The page for browsers, and its files.
HttpApi page_api();

// A file of the page, as it was when the server was built: see embed.cmake.
struct PageFile {
  std::string_view name;
  std::string_view etag;  // with its quotes
  std::string_view content;
};
extern const std::span<const PageFile> kPageFiles;

}  // namespace recurve
