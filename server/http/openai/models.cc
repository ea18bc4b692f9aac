#include "server/http/openai/models.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <ctime>

namespace recurve {
namespace {

using nlohmann::json;

json model_object(const ServerCore& core) {
  const auto age = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - core.started);
  return {{"id", core.model()->info.model_name},
          {"object", "model"},
          {"created", static_cast<int64_t>(std::time(nullptr)) - age.count()},
          {"owned_by", "recurve"}};
}

}  // namespace

Refused list_models(const HttpRequest&, const ServerCore& core, json* object) {
  *object = {{"object", "list"}, {"data", json::array({model_object(core)})}};
  return {};
}

Refused get_model(const HttpRequest& request, const ServerCore& core, json* object) {
  *object = model_object(core);
  return check_model(request.names.front(), *core.model());
}

Refused check_model(const std::string& name, const ServedModel& model) {
  if (name == model.info.model_name) return {};
  return Refusal{.reason = EndReason::kNotFound,
                 .message = fmt::format("unknown model \"{}\": this server has \"{}\"", cut(name),
                                        model.info.model_name),
                 .field = "model"};
}

}  // namespace recurve
