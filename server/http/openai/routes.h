#pragma once
#include <memory>
#include <string>

#include "server/http/connection.h"
#include "server/http/exchange.h"
#include "server/http/openai/sessions.h"

namespace recurve {

// What stands in the table of routes for OpenAI's dialect.
std::shared_ptr<Exchange> complete(HttpContext& context, std::shared_ptr<Connection> connection,
                                   HttpRequest request);
std::shared_ptr<Exchange> complete_chat(HttpContext& context,
                                        std::shared_ptr<Connection> connection,
                                        HttpRequest request);
std::shared_ptr<Exchange> create_response(HttpContext& context,
                                          std::shared_ptr<Connection> connection,
                                          HttpRequest request);
std::string get_response(const HttpContext& context, const HttpRequest& request, bool keep_alive);
std::string remove_response(const HttpContext& context, const HttpRequest& request,
                            bool keep_alive);
std::shared_ptr<Exchange> begin_tokenize(HttpContext& context,
                                         std::shared_ptr<Connection> connection,
                                         HttpRequest request);
std::shared_ptr<Exchange> begin_detokenize(HttpContext& context,
                                           std::shared_ptr<Connection> connection,
                                           HttpRequest request);
std::string get_tokenizer_info(const HttpContext& context, const HttpRequest& request,
                               bool keep_alive);
std::string list_models(const HttpContext& context, const HttpRequest& request, bool keep_alive);
std::string get_model(const HttpContext& context, const HttpRequest& request, bool keep_alive);
std::string get_health(const HttpContext& context, const HttpRequest& request, bool keep_alive);

}  // namespace recurve
