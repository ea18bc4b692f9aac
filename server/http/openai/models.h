#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "server/http/message.h"
#include "server/serving/server_core.h"

namespace recurve {

// The most tokens that a client may count on for a prompt and its answer: the longest prompt, or
// of models whose states grow the longest session if that is shorter.
int64_t max_model_len(const ServedModel& model);

// GET /v1/models and /v1/models/NAME: the served models, and the adapters that the caller may see.
Refused list_models(const HttpRequest& request, const ServerCore& core, nlohmann::json* object);
Refused get_model(const HttpRequest& request, const ServerCore& core, nlohmann::json* object);

}  // namespace recurve
