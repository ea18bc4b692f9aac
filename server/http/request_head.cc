#include "server/http/request_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/core/string.hpp>

namespace recurve {
namespace {

namespace http = boost::beast::http;

std::string_view to_view(boost::beast::string_view text) { return {text.data(), text.size()}; }

// `local`: the path and the query of a target. `host`: a proxy may send it there too; empty: none.
struct Target {
  std::string_view host = {}, local = {};
};
Target target_of(std::string_view target) {
  const size_t scheme = target.find("://");
  if (target.starts_with('/') || scheme == std::string_view::npos) return {.local = target};
  target.remove_prefix(scheme + 3);
  const size_t slash = std::min(target.find('/'), target.size());
  return {.host = target.substr(0, slash),
          .local = slash == target.size() ? "/" : target.substr(slash)};
}

bool equal(std::string_view a, std::string_view b) {
  return boost::beast::iequals({a.data(), a.size()}, {b.data(), b.size()});
}

// A page of another origin can post any type but JSON without a preflight request. A request that
// no page has sent may have the type that `curl -d` sets by default.
bool may_be_json(const HttpFields& fields) {
  std::string_view type = field_of(fields, "Content-Type");
  type = type.substr(0, type.find(';'));
  while (type.ends_with(' ')) type.remove_suffix(1);
  if (equal(type, "application/json")) return true;
  const bool page = !field_of(fields, "Origin").empty() || !field_of(fields, "Referer").empty() ||
                    !field_of(fields, "Sec-Fetch-Site").empty();
  return type == "application/x-www-form-urlencoded" && !page;
}

bool has_body(const HttpFields& fields) {
  const std::string_view length = field_of(fields, "Content-Length");
  return (!length.empty() && length != "0") || !field_of(fields, "Transfer-Encoding").empty();
}

// Without these headers a browser gives a page of an allowed origin no response.
std::string origin_headers(std::string_view origin) {
  if (origin.empty()) return {};
  return fmt::format(
      "Access-Control-Allow-Origin: {}\r\nVary: Origin\r\n"
      "Access-Control-Expose-Headers: x-request-id, x-should-retry, retry-after, "
      "retry-after-ms\r\n",
      origin);
}

// Lists the methods. A browser sends this preflight request for a page of another origin.
std::string options_response(const RequestHead& head, std::string_view origin) {
  std::string headers = fmt::format("Allow: {}\r\n", head.match.allow);
  if (!origin.empty()) {
    headers += fmt::format(
        "Access-Control-Allow-Methods: {}\r\nAccess-Control-Allow-Headers: *, Authorization\r\n"
        "Access-Control-Allow-Private-Network: true\r\nAccess-Control-Max-Age: 600\r\n",
        head.match.allow);
  }
  return response({.status = 204, .keep_alive = head.keep_alive, .headers = headers});
}

// HEAD works wherever GET does.
RouteMatch find(std::span<const HttpApi> apis, http::verb verb, std::string_view path) {
  RouteMatch match = find_route(apis, verb == http::verb::head ? http::verb::get : verb, path);
  const size_t get = match.allow.find("GET");
  if (get != std::string::npos) match.allow.insert(get + 3, ", HEAD");
  return match;
}

// Fields of which this server reads one value: a proxy that reads another one would forward a
// request that it has not checked.
constexpr const char* kSingleFields[] = {
    "Authorization",        "Content-Type", "Expect",       "Host",
    "Idempotency-Key",      "Origin",       "x-request-id", "x-recurve-session",
    "x-recurve-timeout-ms", "traceparent",  "x-api-key",
};

// Why a proxy could read the request differently from this server; empty: it cannot.
std::string ambiguity(const HttpFields& fields, const Target& target) {
  for (const char* name : kSingleFields) {
    if (fields.count(name) > 1) return fmt::format("the head must have one {}, got several", name);
  }
  const bool http11 = fields.version() >= 11;
  const std::string_view host = field_of(fields, "Host");
  if (http11 && host.empty()) return "HTTP/1.1 needs a Host";
  if (!host.empty() && !target.host.empty() && !equal(host, target.host)) {
    return "Host must be the host of the request's target";
  }
  // RFC 9112, 6.3: with another encoding, the end of the body is unknown.
  const bool encoded = fields.count(http::field::transfer_encoding) > 0;
  if (!encoded) return {};
  if (!http11) return "Transfer-Encoding needs HTTP/1.1";
  if (equal(all_of(fields, "Transfer-Encoding"), "chunked")) return {};
  return "Transfer-Encoding must be chunked, and nothing else";
}

std::optional<std::string> refusal(const HttpFields& fields, std::string_view path,
                                   const RouteMatch& match) {
  const auto refuse = [&](int status, const std::string& message, const std::string& headers = "") {
    return error_response(match.error_body, status, message, headers);
  };
  if (match.allow.empty()) return refuse(404, fmt::format("unknown endpoint {}", cut(path)));
  if (fields.method() == http::verb::options) return {};
  // Clients that would rather have a WebSocket then send the request itself.
  if (match.route == nullptr && !field_of(fields, "Upgrade").empty()) {
    return refuse(426, fmt::format("{} takes {}, without an upgrade", cut(path), match.allow),
                  "Upgrade: HTTP/1.1\r\n");
  }
  if (match.route == nullptr) {
    return refuse(405, fmt::format("{} takes {}", cut(path), match.allow),
                  fmt::format("Allow: {}\r\n", match.allow));
  }
  const bool takes_body = match.route->body == Route::Body::kJson ||
                          (match.route->body == Route::Body::kOptional && has_body(fields));
  if (takes_body && !may_be_json(fields)) {
    return refuse(415, "the body must be JSON, with Content-Type: application/json");
  }
  return {};
}

}  // namespace

std::string_view field_of(const HttpFields& fields, std::string_view name) {
  const auto found = fields.find(boost::beast::string_view(name.data(), name.size()));
  return found == fields.end() ? std::string_view() : to_view(found->value());
}

std::string authorization_of(const HttpFields& fields) {
  const std::string_view authorization = field_of(fields, "Authorization");
  const std::string_view key = field_of(fields, "x-api-key");
  if (!authorization.empty() || key.empty()) return std::string(authorization);
  return fmt::format("Bearer {}", key);
}

std::string all_of(const HttpFields& fields, std::string_view name) {
  std::string all;
  const auto found = fields.equal_range(boost::beast::string_view(name.data(), name.size()));
  for (auto at = found.first; at != found.second; ++at) {
    if (!all.empty()) all += ',';
    all += to_view(at->value());
  }
  return all;
}

RequestHead read_request_head(const HttpFields& fields, bool keep_alive, const HttpOptions& options,
                              std::span<const HttpApi> apis) {
  RequestHead head{.keep_alive = keep_alive,
                   .chunks = fields.version() >= 11,
                   .bodiless = fields.method() == http::verb::head};
  const auto end_with = [&](std::string answer) {
    head.keep_alive = false;  // its body is not read
    head.answer = std::move(answer);
    return std::move(head);
  };
  const auto refuse = [&](int status, const std::string& message) {
    return end_with(error_response(error_object, status, message));
  };
  if (fields.version() != 10 && fields.version() != 11) {
    return refuse(505, "this server supports HTTP/1.1 and HTTP/1.0 only");
  }
  const Target target = target_of(to_view(fields.target()));
  const std::string unclear = ambiguity(fields, target);
  if (!unclear.empty()) return refuse(400, unclear);
  const std::string_view origin = field_of(fields, "Origin");
  const std::string_view host = target.host.empty() ? field_of(fields, "Host") : target.host;
  const std::string problem =
      origin_problem(host, origin, options.origins, options.tls == nullptr ? "http" : "https");
  if (!problem.empty()) return refuse(403, problem);
  head.headers = origin_headers(origin);

  const std::string_view path = target.local.substr(0, target.local.find('?'));
  if (path.size() < target.local.size()) head.query = target.local.substr(path.size() + 1);
  head.match = find(apis, fields.method(), path);
  if (auto answer = refusal(fields, path, head.match)) return end_with(std::move(*answer));
  if (fields.method() == http::verb::options) {
    if (has_body(fields)) head.keep_alive = false;  // which is not read
    head.answer = options_response(head, origin);
    return head;
  }
  // The end of the connection ends a stream that has no chunks.
  if (!head.chunks && head.match.route->is_exchange()) head.keep_alive = false;
  head.continues =
      head.chunks && boost::beast::iequals(fields[http::field::expect], "100-continue");
  return head;
}

}  // namespace recurve
