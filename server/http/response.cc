#include "server/http/response.h"

#include <fmt/format.h>

#include <boost/beast/http/status.hpp>
#include <cmath>

#include "server/http/body_fields.h"
#include "server/http/openai/errors.h"

namespace recurve {
namespace {

std::string reason_of(int status) {
  if (status == 499) return "Client Closed Request";
  return std::string(
      boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(status)));
}

std::string connection_headers(bool keep_alive, const std::string& request_id) {
  std::string headers = keep_alive ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  if (!request_id.empty()) headers += "x-request-id: " + request_id + "\r\n";
  return headers;
}

// What is busy stays so for a while, and a name that is taken stays taken: clients that try again
// in silence would only wait. A full server says when there may be room.
std::string retry_headers(const Refusal& refusal, bool repeatable) {
  if (refusal.reason == EndReason::kUnauthenticated) return "WWW-Authenticate: Bearer\r\n";
  if (!repeatable || refusal.row().retry == Retry::kNever) return "x-should-retry: false\r\n";
  if (!refusal.retry_seconds) return {};
  return fmt::format("retry-after-ms: {:.0f}\r\nRetry-After: {:.0f}\r\n",
                     1000 * *refusal.retry_seconds, std::ceil(*refusal.retry_seconds));
}

}  // namespace

std::string response(Response of) {
  const bool bodiless = of.status == 204 || of.status == 304;
  const std::string what = bodiless ? ""
                                    : fmt::format("Content-Type: {}\r\nContent-Length: {}\r\n",
                                                  of.content_type, of.body.size());
  of.body.insert(0,
                 fmt::format("HTTP/1.1 {} {}\r\n{}{}{}\r\n", of.status, reason_of(of.status), what,
                             connection_headers(of.keep_alive, of.request_id), of.headers));
  return std::move(of.body);
}

std::string refusal_response(const Refusal& refusal, bool keep_alive, const std::string& request_id,
                             bool repeatable) {
  return response({.status = refusal.row().http,
                   .body = dump(error_of(refusal)),
                   .keep_alive = keep_alive,
                   .request_id = request_id,
                   .headers = retry_headers(refusal, repeatable)});
}

// X-Accel-Buffering: nginx would hold events back until a buffer is full.
std::string stream_head(bool keep_alive, bool chunked, const std::string& request_id) {
  return fmt::format(
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
      "X-Accel-Buffering: no\r\n{}{}\r\n",
      chunked ? "Transfer-Encoding: chunked\r\n" : "", connection_headers(keep_alive, request_id));
}

std::string chunk(std::string_view bytes, bool chunked) {
  return chunked ? fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes) : std::string(bytes);
}

std::string last_chunk(bool chunked) { return chunked ? "0\r\n\r\n" : ""; }

}  // namespace recurve
