#include <fmt/format.h>

#include <algorithm>

#include "server/http/body_fields.h"
#include "server/http/server_api.h"

namespace recurve {
namespace {

// Only this server's files and answers; no other page may show it in a frame.
constexpr std::string_view kPolicy =
    "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
    "Cross-Origin-Opener-Policy: same-origin\r\nCross-Origin-Resource-Policy: same-origin\r\n"
    "Cache-Control: no-cache\r\n";

std::string_view type_of(std::string_view name) {
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return "text/html; charset=utf-8";
}

std::string file_response(std::string_view name, const HttpRequest& request) {
  const auto file = std::find_if(kPageFiles.begin(), kPageFiles.end(),
                                 [&](const PageFile& one) { return one.name == name; });
  if (file == kPageFiles.end()) {
    return response({.status = 404,
                     .body = dump(error_object(404, fmt::format("unknown file {}", name))),
                     .keep_alive = request.keep_alive});
  }
  const std::string headers = fmt::format("{}ETag: {}\r\n", kPolicy, file->etag);
  if (request.if_none_match == file->etag) {
    return response({.status = 304, .keep_alive = request.keep_alive, .headers = headers});
  }
  return response({.body = std::string(file->content),
                   .content_type = type_of(name),
                   .keep_alive = request.keep_alive,
                   .headers = headers});
}

}  // namespace

HttpApi page_api() {
  using boost::beast::http::verb;
  const Route::Respond page = [](const HttpRequest& request) {
    return file_response("index.html", request);
  };
  const Route::Respond file = [](const HttpRequest& request) {
    return file_response(request.names.front(), request);
  };
  return {.routes = {{verb::get, "/", Route::Body::kNone, page, Role::kAnonymous},
                     {verb::get, "/page/*", Route::Body::kNone, file, Role::kAnonymous}}};
}

}  // namespace recurve
