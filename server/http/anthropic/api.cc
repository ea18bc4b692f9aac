#include "server/http/anthropic/api.h"

#include <string>
#include <utility>

#include "server/http/anthropic/messages.h"
#include "server/http/http_answer.h"
#include "server/http/unary_exchange.h"

namespace recurve {
namespace {

using boost::beast::http::verb;
using nlohmann::json;
using enum Route::Body;

const char* error_type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

// The sentence names the field; the dialect has no separate place for it.
json anthropic_error(int status, const std::string& message, const std::string&) {
  return {{"type", "error"},
          {"error", {{"type", error_type_of(status)}, {"message", cut(message, kMostSaid)}}}};
}

HttpApi anthropic_api(ServerCore& core) {
  return {.routes = {{verb::post, "/v1/messages", kJson, answers<Messages>(core)},
                     {verb::post, "/v1/messages/count_tokens", kJson,
                      UnaryExchange::request_handler(core, count_tokens)}},
          .error_body = anthropic_error};
}

}  // namespace recurve
