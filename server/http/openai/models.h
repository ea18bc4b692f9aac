#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "server/http/message.h"
#include "server/serving/server_core.h"

namespace recurve {

// GET /v1/models and /v1/models/NAME: the served model.
Refused list_models(const HttpRequest& request, const ServerCore& core, nlohmann::json* object);
Refused get_model(const HttpRequest& request, const ServerCore& core, nlohmann::json* object);

}  // namespace recurve
