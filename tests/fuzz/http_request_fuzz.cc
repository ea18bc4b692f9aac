// Bytes of a connection for the HTTP frontend: heads, bodies and what follows them. The first byte
// is the size of the pieces.
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/http/request_head.h"

namespace recurve {
namespace {

namespace http = boost::beast::http;
using Parser = http::request_parser<http::string_body>;

void demand(bool so) {
  if (!so) std::abort();
}

// No line of a response's head comes from elsewhere: each ends in CR LF, and there is neither of
// them within one.
void check_lines(std::string_view lines) {
  while (!lines.empty()) {
    const size_t end = lines.find("\r\n");
    demand(end != std::string_view::npos);
    const std::string_view line = lines.substr(0, end);
    demand(line.find_first_of(std::string_view("\r\n\0", 3)) == std::string_view::npos);
    lines.remove_prefix(end + 2);
  }
}

void check(const RequestHead& head) {
  check_lines(head.headers);
  if (head.answer) {
    demand(head.answer->starts_with("HTTP/1.1 "));
    const size_t end = head.answer->find("\r\n\r\n");
    demand(end != std::string::npos);
    return check_lines(std::string_view(*head.answer).substr(0, end + 2));
  }
  demand(head.match.route != nullptr);
  demand(head.chunks || !head.match.route->is_exchange() || !head.keep_alive);
}

// Returns whether another request may follow: the bytes behind this one are its.
bool read_request(std::string* bytes, size_t piece, const HttpOptions& options,
                  std::span<const HttpApi> apis) {
  Parser parser;
  parser.header_limit(kMostHeadBytes);
  parser.body_limit(static_cast<uint64_t>(options.max_body_bytes));
  boost::system::error_code error;
  bool headed = false;
  for (size_t there = std::min(piece, bytes->size()); !parser.is_done();) {
    const size_t used = parser.put(boost::asio::buffer(bytes->data(), there), error);
    if (error && error != http::error::need_more) return false;
    bytes->erase(0, used);
    there -= used;
    if (!headed && parser.is_header_done()) {
      headed = true;
      const RequestHead head = read_request_head(parser.get(), parser.keep_alive(), options, apis);
      check(head);
      if (!head.keep_alive || head.answer) return false;
      parser.eager(true);
    }
    if (used > 0) continue;
    if (there == bytes->size()) return false;
    there = std::min(there + piece, bytes->size());
  }
  demand(parser.get().body().size() <= static_cast<uint64_t>(options.max_body_bytes));
  return !bytes->empty();
}

}  // namespace
}  // namespace recurve

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const recurve::HttpOptions options{
      .listen = "", .max_body_bytes = 4096, .origins = {"https://ui.example"}};
  using recurve::Route;
  using enum Route::Body;
  using boost::beast::http::verb;
  static const std::vector<recurve::HttpApi> apis = {
      {.routes = {{verb::post, "/v1/completions", kJson, Route::Begin()},
                  {verb::get, "/v1/models/*", kNone, Route::Respond()},
                  {verb::post, "/v1/sessions", kOptional, Route::Begin()},
                  {verb::delete_, "/v1/sessions/*/marks/*", kNone, Route::Begin()}}}};
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  while (recurve::read_request(&bytes, size_t{1} + data[0], options, apis)) {
  }
  return 0;
}
