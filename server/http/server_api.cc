#include "server/http/server_api.h"

#include <nlohmann/json.hpp>

#include "server/http/body_fields.h"

namespace recurve {
namespace {

using boost::beast::http::verb;
using nlohmann::json;

json json_of(const ModelLoad& load) {
  const EngineStats& stats = load.stats;
  return {{"requests_running", stats.running},
          {"requests_waiting", load.waiting},
          {"max_queue", load.max_queue},
          {"slots",
           {{"total", stats.slots},
            {"free", stats.slots_free},
            {"running", stats.running},
            {"idle_session", stats.slots_idle}}},
          {"pages",
           {{"total", stats.pages},
            {"free", stats.pages_free},
            {"bytes", load.page_bytes},
            {"preemptions", stats.preemptions}}},
          {"sessions",
           {{"total", stats.sessions},
            {"responses", stats.responses},
            {"host", stats.sessions_host},
            {"host_bytes", stats.host_bytes}}},
          {"prefixes",
           {{"states", stats.prefix_states},
            {"bytes", stats.prefix_bytes},
            {"limit_bytes", stats.prefix_limit},
            {"disk_states", stats.prefix_states_disk},
            {"disk_bytes", stats.prefix_bytes_disk},
            {"spared_tokens", stats.prefix_tokens}}},
          {"prompt_tokens", stats.prompt_tokens},
          {"generated_tokens", stats.generated_tokens},
          {"steps", stats.steps},
          {"expected_queue_seconds", stats.expected_queue_seconds}};
}

const char* status_of(const ServedModel& model) { return model.failed() ? "failed" : "serving"; }

void add_model(const ServedModel& model, json* load) {
  const Chat& chat = model.text.chat;
  (*load)["model"] = model.info.model_name;
  (*load)["state_bytes"] = model.info.state_bytes;
  (*load)["state_bytes_per_token"] = model.info.state_bytes_per_token;
  (*load)["chat"] = chat.format != nullptr;
  if (chat.exists) (*load)["chat_problem"] = chat.problem;
}

Route::Respond load_handler(const ServerCore& core) {
  return [&core](const HttpRequest& request) {
    if (const auto refusal = core.availability()) return refusal_response(request, *refusal);
    json load = json_of(load_of(core.models()));
    load["object"] = "load";
    load["version"] = core.options.version;
    load["uptime_seconds"] = seconds_between(core.started, Clock::now());
    add_model(core.first(), &load);
    if (core.several()) {
      json& models = load["models"] = json::array();
      for (const auto& model : core.models()) {
        models.push_back(json_of(load_of({model})));
        models.back()["status"] = status_of(*model);
        add_model(*model, &models.back());
      }
    }
    return response({.body = dump(load),
                     .keep_alive = request.keep_alive,
                     .request_id = request.request_id,
                     .headers = "Cache-Control: no-store\r\n"});
  };
}

}  // namespace

HttpApi server_api(ServerCore& core) {
  const auto health = json_handler(core, [&core](const HttpRequest&, json* object) {
    *object = {{"status", "ok"}};
    if (!core.durable()) (*object)["durability"] = "unavailable";
    for (const auto& model : core.models()) {
      if (core.several()) (*object)["models"][model->name()] = status_of(*model);
    }
    return Refused();
  });
  const Route::Respond metrics = [&core](const HttpRequest& request) {
    return response({.body = core.metrics.text(),
                     .content_type = "text/plain; version=0.0.4; charset=utf-8",
                     .keep_alive = request.keep_alive,
                     .request_id = request.request_id});
  };
  return {.routes = {{verb::get, "/health", Route::Body::kNone, health, Role::kAnonymous},
                     {verb::get, "/metrics", Route::Body::kNone, metrics, Role::kObserver}}};
}

HttpApi load_api(const ServerCore& core) {
  const auto version = json_handler(core, [&core](const HttpRequest&, json* object) {
    *object = {{"version", core.options.version}};
    return Refused();
  });
  return {
      .routes = {{verb::get, "/v1/load", Route::Body::kNone, load_handler(core), Role::kObserver},
                 {verb::get, "/version", Route::Body::kNone, version}}};
}

}  // namespace recurve
