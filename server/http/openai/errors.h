#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "server/request/refusal.h"

namespace recurve {

// An error as an object of OpenAI's dialect. field: what is wrong; empty: no one field.
nlohmann::json error_object(int status, const std::string& message, const std::string& field = {});
// A refusal as one.
nlohmann::json error_of(const Refusal& refusal);

}  // namespace recurve
