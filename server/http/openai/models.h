#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "server/serving/server_core.h"

namespace recurve {

// /v1/models and /v1/models/NAME: the one that is served.
nlohmann::json model_object(const ServerCore& core);
nlohmann::json model_list(const ServerCore& core);
// Refuses a model that is not served, and says which one is.
Refused check_model(const std::string& name, const ServedModel& model);

}  // namespace recurve
