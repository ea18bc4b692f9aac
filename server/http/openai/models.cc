#include "server/http/openai/models.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <ctime>

namespace recurve {

using nlohmann::json;

json model_object(const Serving& serving) {
  const auto age = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - serving.started);
  return {{"id", serving.info.model_name},
          {"object", "model"},
          {"created", static_cast<int64_t>(std::time(nullptr)) - age.count()},
          {"owned_by", "recurve"}};
}

json model_list(const Serving& serving) {
  return {{"object", "list"}, {"data", json::array({model_object(serving)})}};
}

Refused check_model(const std::string& name, const Serving& serving) {
  if (name == serving.info.model_name) return {};
  return Refusal{.reason = EndReason::kNotFound,
                 .message = fmt::format("there is no model \"{}\": this server has \"{}\"",
                                        cut(name), serving.info.model_name),
                 .field = "model"};
}

}  // namespace recurve
