#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/identity/identity.h"
#include "server/request/clock.h"
#include "server/request/refusal.h"
#include "server/request/response_sink.h"

namespace recurve {

// The body of a response to a request that failed. field: the wrong field; empty: no single one.
using ErrorBody = nlohmann::json (*)(int status, const std::string& message,
                                     const std::string& field);

// The ErrorBody of an API that has no other.
nlohmann::json error_object(int status, const std::string& message, const std::string& field = {});
nlohmann::json error_of(const Refusal& refusal, ErrorBody error_body = error_object);

// A request, complete with its body.
struct HttpRequest {
  Identity caller = kAnyone;
  std::vector<std::string> names = {};  // the segment of the path for each * of its route
  std::string query = {};               // behind the target's '?'
  // x-request-id, or a generated one: for logs and aborts alone. A valid name.
  std::string request_id = {};
  std::string idempotency_key = {};  // Idempotency-Key; empty: none
  CallOrigin origin = {};
  std::string session = {};        // x-recurve-session; empty: none, or in the body
  std::string timeout_ms = {};     // x-recurve-timeout-ms; empty: no limit
  std::string if_none_match = {};  // the version that the client has; empty: none
  std::string body = {};
  // For its response.
  bool keep_alive = true;  // another request may follow on the connection
  bool chunked = true;  // HTTP/1.1: a stream is sent in chunks; in HTTP/1.0 the connection ends it
  ErrorBody error_body = error_object;
};

// The time by which the client wants its response, from x-recurve-timeout-ms.
Refused read_deadline(const HttpRequest& request, Clock::time_point arrival,
                      std::optional<Clock::time_point>* deadline);

struct Response {
  int status = 200;
  std::string body = {};
  std::string_view content_type = "application/json";
  bool keep_alive = true;
  std::string request_id = {};  // empty: no x-request-id
  std::string headers = {};     // further ones, each with its line's end
};
// The bytes of a response.
std::string response(Response of);
// The same, to a request: a body of JSON, which succeeds.
std::string json_response(const HttpRequest& request, std::string body, int status = 200);
// With the headers by which clients decide whether to retry. `repeatable`: the request has changed
// nothing, so that it can be sent once more.
std::string refusal_response(const HttpRequest& request, const Refusal& refusal,
                             bool repeatable = true);
// For a request that was not read to its end. The connection is closed.
std::string error_response(ErrorBody error_body, int status, const std::string& message,
                           const std::string& headers = "");

// The head of a response with so many bytes, which follow.
std::string bytes_head(const HttpRequest& request, uint64_t bytes);

// A stream of events: its head, its chunks, its end.
std::string stream_head(const HttpRequest& request);
std::string chunk(std::string_view bytes, bool chunked);
std::string last_chunk(bool chunked);

// A field of a target's query, "a=1&b=x%20y", decoded: the first of that name. Nothing if there is
// none or it is empty.
std::optional<std::string> query_field(std::string_view query, std::string_view name);

}  // namespace recurve
