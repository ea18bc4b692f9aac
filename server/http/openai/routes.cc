#include "server/http/openai/routes.h"

#include <utility>

#include "server/http/body_fields.h"
#include "server/http/http_answer.h"
#include "server/http/openai/chat_completions.h"
#include "server/http/openai/completions.h"
#include "server/http/openai/models.h"
#include "server/http/openai/responses/responses.h"
#include "server/http/openai/tokenize.h"
#include "server/http/response.h"
#include "server/http/unary_exchange.h"

namespace recurve {
namespace {

template <typename Dialect>
std::shared_ptr<Exchange> answer(HttpContext& context, std::shared_ptr<Connection> connection,
                                 HttpRequest request) {
  auto dialect = std::make_unique<Dialect>(context.core, request);
  return std::make_shared<HttpAnswer>(std::move(connection), context.core, std::move(request),
                                      std::move(dialect));
}

// What is known at once, if the server serves.
template <typename Make>
std::string at_once(const HttpContext& context, const HttpRequest& request, bool keep_alive,
                    const Make& make) {
  Refused refused = context.core.availability();
  nlohmann::json object;
  if (!refused) refused = make(&object);
  if (refused) return refusal_response(*refused, keep_alive, request.request_id);
  return response(
      {.body = dump(object), .keep_alive = keep_alive, .request_id = request.request_id});
}

}  // namespace

std::shared_ptr<Exchange> complete(HttpContext& context, std::shared_ptr<Connection> connection,
                                   HttpRequest request) {
  return answer<Completions>(context, std::move(connection), std::move(request));
}

std::shared_ptr<Exchange> complete_chat(HttpContext& context,
                                        std::shared_ptr<Connection> connection,
                                        HttpRequest request) {
  return answer<ChatCompletions>(context, std::move(connection), std::move(request));
}

std::shared_ptr<Exchange> create_response(HttpContext& context,
                                          std::shared_ptr<Connection> connection,
                                          HttpRequest request) {
  auto dialect = std::make_unique<Responses>(context.core, *context.responses, request);
  return std::make_shared<HttpAnswer>(std::move(connection), context.core, std::move(request),
                                      std::move(dialect));
}

std::string get_response(const HttpContext& context, const HttpRequest& request, bool keep_alive) {
  return at_once(context, request, keep_alive, [&](nlohmann::json* object) {
    return find_response(request, *context.core.model(), *context.responses, object);
  });
}

std::string remove_response(const HttpContext& context, const HttpRequest& request,
                            bool keep_alive) {
  return at_once(context, request, keep_alive, [&](nlohmann::json* object) {
    return delete_response(request, *context.core.model(), *context.responses, object);
  });
}

std::shared_ptr<Exchange> begin_tokenize(HttpContext& context,
                                         std::shared_ptr<Connection> connection,
                                         HttpRequest request) {
  return std::make_shared<UnaryExchange>(std::move(connection), context.core, std::move(request),
                                         tokenize);
}

std::shared_ptr<Exchange> begin_detokenize(HttpContext& context,
                                           std::shared_ptr<Connection> connection,
                                           HttpRequest request) {
  return std::make_shared<UnaryExchange>(std::move(connection), context.core, std::move(request),
                                         detokenize);
}

std::string get_tokenizer_info(const HttpContext& context, const HttpRequest& request,
                               bool keep_alive) {
  return at_once(context, request, keep_alive, [&](nlohmann::json* object) {
    *object = tokenizer_info(context.core.model()->text);
    return Refused();
  });
}

std::string list_models(const HttpContext& context, const HttpRequest& request, bool keep_alive) {
  return at_once(context, request, keep_alive, [&](nlohmann::json* object) {
    *object = model_list(context.core);
    return Refused();
  });
}

std::string get_model(const HttpContext& context, const HttpRequest& request, bool keep_alive) {
  return at_once(context, request, keep_alive, [&](nlohmann::json* object) {
    *object = model_object(context.core);
    return check_model(request.names.front(), *context.core.model());
  });
}

std::string get_health(const HttpContext& context, const HttpRequest& request, bool keep_alive) {
  return at_once(context, request, keep_alive, [&](nlohmann::json* object) {
    *object = {{"status", "ok"}};
    if (!context.core.durable()) (*object)["durability"] = "unavailable";
    return Refused();
  });
}

}  // namespace recurve
