#include "server/http/openai/models.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>

#include "server/http/request_body.h"

namespace recurve {
namespace {

using nlohmann::json;

json model_object(const ServerCore& core) {
  const auto age = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - core.started);
  const ServedModel& model = *core.model();
  return {{"id", model.info.model_name},
          {"object", "model"},
          {"created", static_cast<int64_t>(std::time(nullptr)) - age.count()},
          {"owned_by", "recurve"},
          {"max_model_len", max_model_len(model)}};
}

}  // namespace

int64_t max_model_len(const ServedModel& model) {
  const int64_t prompt = model.text.max_prompt_tokens, session = model.info.max_session_tokens;
  return session == 0 ? prompt : std::min(prompt, session);
}

Refused list_models(const HttpRequest&, const ServerCore& core, json* object) {
  *object = {{"object", "list"}, {"data", json::array({model_object(core)})}};
  return {};
}

Refused get_model(const HttpRequest& request, const ServerCore& core, json* object) {
  *object = model_object(core);
  return check_model(request.names.front(), *core.model());
}

}  // namespace recurve
