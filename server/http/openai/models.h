#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "server/serving/serving.h"

namespace recurve {

// /v1/models and /v1/models/NAME: the one that is served.
nlohmann::json model_object(const Serving& serving);
nlohmann::json model_list(const Serving& serving);
// Refuses a model that is not served, and says which one is.
Refused check_model(const std::string& name, const Serving& serving);

}  // namespace recurve
