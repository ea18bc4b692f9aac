#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "server/http/message.h"
#include "server/http/openai/responses/response_store.h"
#include "server/serving/server_core.h"

namespace recurve {

// GET and DELETE /v1/responses/ID.
Refused find_response(const HttpRequest& request, ServerCore& core, ResponseStore& store,
                      nlohmann::json* object);
Refused delete_response(const HttpRequest& request, ServerCore& core, ResponseStore& store,
                        nlohmann::json* object);
// POST /v1/responses/ID/cancel: refused, as no response runs in the background.
Refused cancel_response(const HttpRequest& request, ServerCore& core, ResponseStore& store,
                        nlohmann::json* object);
// GET /v1/responses/ID/input_items: a page of the items of this response's input, without those of
// the responses before it. The query has `limit` (1 to 100, default 20), `order` (desc by default,
// or asc) and `after`, an id.
Refused list_input_items(const HttpRequest& request, ServerCore& core, ResponseStore& store,
                         nlohmann::json* object);

// Closes the session of a stored response. The result is not awaited.
void close_stored(ServerCore& core, TenantId tenant, const std::string& id);

Refusal unknown_response(const std::string& id, const char* field = "");

}  // namespace recurve
