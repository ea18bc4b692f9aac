#include "server/http/openai/api.h"

#include <memory>
#include <utility>

#include "server/http/http_answer.h"
#include "server/http/openai/completions.h"
#include "server/http/openai/embeddings.h"
#include "server/http/openai/models.h"
#include "server/http/openai/responses/responses.h"
#include "server/http/openai/responses/stored_responses.h"
#include "server/http/openai/sessions.h"
#include "server/http/openai/tokenize.h"
#include "server/http/unary_exchange.h"

namespace recurve {
namespace {

using boost::beast::http::verb;
using nlohmann::json;
using enum Route::Body;

}  // namespace

HttpApi openai_api(ServerCore& core, int64_t max_response_bytes) {
  const auto responses = std::make_shared<ResponseStore>(max_response_bytes);
  const auto at_once = [&](Refused (*write)(const HttpRequest&, const ServerCore&, json*)) {
    return json_handler(core, [&core, write](const HttpRequest& request, json* object) {
      return write(request, core, object);
    });
  };
  const auto stored = [&](Refused (*write)(const HttpRequest&, ServerCore&, ResponseStore&,
                                           json*)) {
    return json_handler(core, [&core, responses, write](const HttpRequest& request, json* object) {
      return write(request, core, *responses, object);
    });
  };
  const auto count_input = [&core, responses](HttpRequest& request, const ServerCore&,
                                              const WorkLimits& limits, std::string* object) {
    std::string body = std::move(request.body);
    return Responses(core, *responses, request).count_input(std::move(body), limits, object);
  };
  HttpApi api{
      .routes = {
          {verb::post, "/v1/completions", kJson, answers<Completions>(core)},
          {verb::post, "/v1/chat/completions", kJson, answers<ChatCompletions>(core)},
          {verb::post, "/v1/embeddings", kJson, Embeddings::handler(core)},
          {verb::get, "/v1/models", kNone, at_once(list_models)},
          {verb::get, "/v1/models/*", kNone, at_once(get_model)},
          {verb::post, "/v1/responses", kJson, answers<Responses>(core, responses)},
          {verb::post, "/v1/responses/input_tokens", kJson,
           UnaryExchange::request_handler(core, count_input)},
          {verb::get, "/v1/responses/*", kNone, stored(find_response)},
          {verb::get, "/v1/responses/*/input_items", kNone, stored(list_input_items)},
          {verb::post, "/v1/responses/*/cancel", kOptional, stored(cancel_response)},
          {verb::delete_, "/v1/responses/*", kNone, stored(delete_response)},
          {verb::post, "/tokenize", kJson, UnaryExchange::request_handler(core, tokenize)},
          {verb::post, "/detokenize", kJson, UnaryExchange::request_handler(core, detokenize)},
          {verb::get, "/tokenizer_info", kNone, at_once(tokenizer_info)},
      }};
  for (Route& route : session_routes(core)) api.routes.push_back(std::move(route));
  return api;
}

}  // namespace recurve
