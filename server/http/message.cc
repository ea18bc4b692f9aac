#include "server/http/message.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/http/status.hpp>
#include <charconv>
#include <cmath>

#include "server/http/body_fields.h"

namespace recurve {
namespace {

using nlohmann::json;

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

// A conflict does not end by itself: clients that retry without saying so would only wait. A full
// server says when there may be capacity.
std::string retry_headers(const Refusal& refusal, bool repeatable) {
  if (refusal.reason == EndReason::kUnauthenticated) return "WWW-Authenticate: Bearer\r\n";
  if (!repeatable || refusal.row().retry == Retry::kNever) return "x-should-retry: false\r\n";
  if (!refusal.retry_seconds) return {};
  return fmt::format("retry-after-ms: {:.0f}\r\nRetry-After: {:.0f}\r\n",
                     1000 * *refusal.retry_seconds, std::ceil(*refusal.retry_seconds));
}

// An invalid escape stays as it is.
std::string decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    const char* digits = text.data() + i + 1;
    const bool escape = text[i] == '%' && i + 2 < text.size() &&
                        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    out.push_back(escape ? static_cast<char>(byte) : text[i] == '+' ? ' ' : text[i]);
    if (escape) i += 2;
  }
  return out;
}

}  // namespace

json error_object(int status, const std::string& message, const std::string& field) {
  const char* type = "server_error";
  if (status >= 400 && status < 500) type = "invalid_request_error";
  if (status == 401) type = "authentication_error";
  if (status == 403) type = "permission_error";
  if (status == 429) type = "rate_limit_error";
  json error = {
      {"message", cut(message, kMostSaid)}, {"type", type}, {"param", nullptr}, {"code", status}};
  if (!field.empty()) error["param"] = cut(field);
  return {{"error", std::move(error)}};
}

json error_of(const Refusal& refusal, ErrorBody error_body) {
  return error_body(refusal.row().http, refusal.message, refusal.field);
}

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

Refused read_deadline(const HttpRequest& request, Clock::time_point arrival,
                      std::optional<Clock::time_point>* deadline) {
  const std::string& text = request.timeout_ms;
  if (text.empty()) return {};
  constexpr int64_t kMost = 1'000'000'000;
  int64_t milliseconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), milliseconds);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || milliseconds < 1 || milliseconds > kMost) {
    return invalid("x-recurve-timeout-ms", "x-recurve-timeout-ms must be in [1, {}], got \"{}\"",
                   kMost, cut(text));
  }
  *deadline = arrival + std::chrono::milliseconds(milliseconds);
  return {};
}

std::string json_response(const HttpRequest& request, std::string body, int status) {
  return response({.status = status,
                   .body = std::move(body),
                   .keep_alive = request.keep_alive,
                   .request_id = request.request_id});
}

std::string refusal_response(const HttpRequest& request, const Refusal& refusal, bool repeatable) {
  return response({.status = refusal.row().http,
                   .body = dump(error_of(refusal, request.error_body)),
                   .keep_alive = request.keep_alive,
                   .request_id = request.request_id,
                   .headers = retry_headers(refusal, repeatable)});
}

std::string error_response(ErrorBody error_body, int status, const std::string& message,
                           const std::string& headers) {
  return response({.status = status,
                   .body = dump(error_body(status, message, "")),
                   .keep_alive = false,
                   .headers = headers});
}

// X-Accel-Buffering: nginx would hold events back until a buffer is full.
std::string bytes_head(const HttpRequest& request, uint64_t bytes) {
  return fmt::format(
      "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {}\r\n{}\r\n",
      bytes, connection_headers(request.keep_alive, request.request_id));
}

std::string stream_head(const HttpRequest& request) {
  return fmt::format(
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
      "X-Accel-Buffering: no\r\n{}{}\r\n",
      request.chunked ? "Transfer-Encoding: chunked\r\n" : "",
      connection_headers(request.keep_alive, request.request_id));
}

std::string chunk(std::string_view bytes, bool chunked) {
  return chunked ? fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes) : std::string(bytes);
}

std::string last_chunk(bool chunked) { return chunked ? "0\r\n\r\n" : ""; }

std::optional<std::string> query_field(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view field = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(field.size() + 1, query.size()));
    const size_t equals = field.find('=');
    if (field.substr(0, equals) != name) continue;
    if (equals == std::string_view::npos || equals + 1 == field.size()) return {};
    return decoded(field.substr(equals + 1));
  }
  return {};
}

}  // namespace recurve
