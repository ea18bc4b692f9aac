#include "server/observe/otlp.h"

#include <fmt/format.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>  // Boost 1.74 leaves it out

namespace recurve {
namespace {

using nlohmann::json;
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Error = beast::error_code;

// OTLP in JSON has 64-bit integers as strings.
json value_of(const TraceSpan::Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return {{"stringValue", *text}};
  if (const auto* number = std::get_if<double>(&value)) return {{"doubleValue", *number}};
  return {{"intValue", std::to_string(std::get<int64_t>(value))}};
}

json attribute(const std::string& key, const TraceSpan::Value& value) {
  return {{"key", key}, {"value", value_of(value)}};
}

std::string nanoseconds(TraceSpan::Time time) {
  using std::chrono::nanoseconds;
  return std::to_string(std::chrono::duration_cast<nanoseconds>(time.time_since_epoch()).count());
}

json span_object(const TraceSpan& span) {
  constexpr int kInternal = 1, kServer = 2, kError = 2, kSampled = 1;
  json object = {{"traceId", to_hex(span.trace)},
                 {"spanId", to_hex(span.id)},
                 {"flags", kSampled},
                 {"name", span.name},
                 {"kind", span.of_server ? kServer : kInternal},
                 {"startTimeUnixNano", nanoseconds(span.begin)},
                 {"endTimeUnixNano", nanoseconds(span.end)},
                 {"attributes", json::array()},
                 {"status", json::object()}};
  if (span.parent != SpanId{}) object["parentSpanId"] = to_hex(span.parent);
  if (!span.state.empty()) object["traceState"] = span.state;
  for (const auto& [key, value] : span.attributes) {
    object["attributes"].push_back(attribute(key, value));
  }
  if (!span.error.empty()) object["status"] = {{"code", kError}, {"message", span.error}};
  return object;
}

// Sends a request and reads its response, within the time `most`.
Error exchange(const OtlpTarget& target, const http::request<http::string_body>& request,
               std::chrono::milliseconds most, http::response<http::string_body>* response) {
  asio::io_context io{1};
  Error error;
  const auto addresses = asio::ip::tcp::resolver(io).resolve(target.host, target.port, error);
  if (error) return error;
  beast::tcp_stream stream(io);
  beast::flat_buffer buffer(64 << 10);  // responses are short
  const auto done = [&](Error failed, size_t) { error = failed; };
  const auto written = [&](Error failed, size_t) {
    if (error = failed; !error) http::async_read(stream, buffer, *response, done);
  };
  const auto connected = [&](Error failed, const auto&) {
    if (error = failed; !error) http::async_write(stream, request, written);
  };
  stream.expires_after(most);
  stream.async_connect(addresses, connected);
  io.run();
  return error;
}

}  // namespace

OtlpTarget parse_otlp_url(const std::string& url) {
  const auto refuse = [&](const char* why) {
    return std::invalid_argument(
        fmt::format("must be http://HOST[:PORT][/PATH] of a collector, got \"{}\": {}", url, why));
  };
  constexpr std::string_view kScheme = "http://";
  std::string_view rest = url;
  if (rest.starts_with("https://")) throw refuse("TLS is not supported");
  if (!rest.starts_with(kScheme)) throw refuse("it must begin with http://");
  rest.remove_prefix(kScheme.size());
  OtlpTarget target{.host = {}, .port = "4318", .path = "/v1/traces"};
  if (const size_t slash = rest.find('/'); slash != std::string_view::npos) {
    if (slash + 1 < rest.size()) target.path = rest.substr(slash);
    rest = rest.substr(0, slash);
  }
  const size_t bracket = rest.starts_with('[') ? rest.find(']') : 0;
  if (bracket == std::string_view::npos)
    throw refuse("the bracket of its IPv6 address is not closed");
  if (const size_t colon = rest.find(':', bracket); colon != std::string_view::npos) {
    target.port = rest.substr(colon + 1);
    rest = rest.substr(0, colon);
  }
  target.host = bracket == 0 ? rest : rest.substr(1, bracket - 1);
  if (target.host.empty()) throw refuse("the host is empty");
  const bool digits = target.port.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || target.port.empty() || target.port.size() > 5)
    throw refuse("the port is not a number of up to 5 digits");
  const bool plain = target.path.find_first_of(" \r\n\t") == std::string::npos;
  if (!plain) throw refuse("the path has white space");
  return target;
}

std::string otlp_json(const std::vector<TraceSpan>& spans, const OtlpSource& source) {
  json objects = json::array();
  for (const TraceSpan& span : spans) objects.push_back(span_object(span));
  const json resource = {{"attributes",
                          {attribute("service.name", source.service),
                           attribute("service.instance.id", source.instance),
                           attribute("service.version", source.version)}}};
  const json scope = {{"scope", {{"name", "recurve"}, {"version", source.version}}},
                      {"spans", std::move(objects)}};
  const json all = {{"resourceSpans", json::array({{{"resource", resource},
                                                    {"scopeSpans", json::array({scope})}}})}};
  return all.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
}

OtlpResult post_otlp(const OtlpTarget& target, const std::string& body,
                     std::chrono::milliseconds most) {
  http::request<http::string_body> request(http::verb::post, target.path, 11, body);
  const bool is_ipv6 = target.host.find(':') != std::string::npos;
  request.set(http::field::host,
              fmt::format("{}:{}", is_ipv6 ? "[" + target.host + "]" : target.host, target.port));
  request.set(http::field::content_type, "application/json");
  request.set(http::field::connection, "close");
  request.prepare_payload();
  http::response<http::string_body> response;
  if (const Error error = exchange(target, request, most, &response)) {
    return {.retryable = true, .problem = error.message()};
  }
  const int status = response.result_int();
  if (status >= 200 && status < 300) return {.accepted = true};
  return {.retryable = status == 429 || status == 502 || status == 503 || status == 504,
          .problem = fmt::format("status {}", status)};
}

}  // namespace recurve
