#include "server/http/openai/models.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <utility>

#include "server/http/request_body.h"
#include "server/serving/bind.h"

namespace recurve {
namespace {

using nlohmann::json;

// As vLLM has it: an adapter is a model, whose parent is that which it changes.
json model_object(const ServerCore& core, const FoundModel& model) {
  const auto age = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - core.started);
  json object = {{"id", model.name()},
                 {"object", "model"},
                 {"created", static_cast<int64_t>(std::time(nullptr)) - age.count()},
                 {"owned_by", "recurve"},
                 {"max_model_len", max_model_len(*model)}};
  if (!model.adapter.empty()) object["parent"] = model->name();
  return object;
}

}  // namespace

int64_t max_model_len(const ServedModel& model) {
  const int64_t prompt = model.text.max_prompt_tokens, session = model.info.max_session_tokens;
  return session == 0 ? prompt : std::min(prompt, session);
}

Refused list_models(const HttpRequest& request, const ServerCore& core, json* object) {
  json models = json::array();
  for (const auto& model : core.models()) {
    models.push_back(model_object(core, model));
    for (const auto& adapter : visible_adapters(model->text, request.caller)) {
      models.push_back(model_object(core, {model, adapter->id.name}));
    }
  }
  *object = {{"object", "list"}, {"data", std::move(models)}};
  return {};
}

Refused get_model(const HttpRequest& request, const ServerCore& core, json* object) {
  FoundModel model;
  Refused refused = core.find({.name = request.names.front(), .caller = request.caller}, &model);
  if (!refused) *object = model_object(core, model);
  return refused;
}

}  // namespace recurve
