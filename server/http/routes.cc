#include "server/http/routes.h"

#include <optional>

#include "server/http/openai/routes.h"
#include "server/http/page.h"
#include "server/http/server_resources.h"

namespace recurve {
namespace {

using boost::beast::http::verb;
using enum Route::Body;

constexpr Route kRoutes[] = {
    {verb::post, "/v1/completions", kJson, nullptr, complete},
    {verb::post, "/v1/chat/completions", kJson, nullptr, complete_chat},
    {verb::get, "/v1/models", kNone, list_models},
    {verb::get, "/v1/models/*", kNone, get_model},
    {verb::post, "/v1/responses", kJson, nullptr, create_response},
    {verb::get, "/v1/responses/*", kNone, get_response},
    {verb::delete_, "/v1/responses/*", kNone, remove_response},
    {verb::get, "/v1/sessions", kNone, nullptr, list_sessions},
    {verb::post, "/v1/sessions", kOptional, nullptr, open_session},
    {verb::get, "/v1/sessions/*", kNone, nullptr, get_session},
    {verb::delete_, "/v1/sessions/*", kNone, nullptr, close_session},
    {verb::post, "/v1/sessions/*/fork", kOptional, nullptr, fork_session},
    {verb::post, "/v1/sessions/*/marks", kJson, nullptr, mark_session},
    {verb::delete_, "/v1/sessions/*/marks/*", kNone, nullptr, unmark_session},
    {verb::post, "/v1/sessions/*/rewind", kJson, nullptr, rewind_session},
    {verb::post, "/v1/sessions/*/accept", kJson, nullptr, accept_session},
    {verb::post, "/tokenize", kJson, nullptr, begin_tokenize},
    {verb::post, "/detokenize", kJson, nullptr, begin_detokenize},
    {verb::get, "/tokenizer_info", kNone, get_tokenizer_info},
    {verb::get, "/health", kNone, get_health, nullptr, Where::kEverywhere, Role::kNobody},
    {verb::get, "/metrics", kNone, get_metrics, nullptr, Where::kEverywhere, Role::kObserver},
    {verb::get, "/v1/load", kNone, get_load, nullptr, Where::kDoor, Role::kObserver},
    {verb::get, "/", kNone, get_page, nullptr, Where::kPage, Role::kNobody},
    {verb::get, "/page/*", kNone, get_page_file, nullptr, Where::kPage, Role::kNobody},
};

std::string_view take_segment(std::string_view* path) {
  path->remove_prefix(1);  // '/'
  const std::string_view segment = path->substr(0, path->find('/'));
  path->remove_prefix(segment.size());
  return segment;
}

// What stands for each *; nothing where the path is another one.
std::optional<std::vector<std::string>> match(std::string_view pattern, std::string_view path) {
  std::vector<std::string> names;
  while (pattern.starts_with('/') && path.starts_with('/')) {
    const std::string_view wanted = take_segment(&pattern), got = take_segment(&path);
    if (wanted == "*") {
      names.emplace_back(got);
    } else if (wanted != got) {
      return {};
    }
  }
  if (!pattern.empty() || !path.empty()) return {};
  return names;
}

}  // namespace

std::span<const Route> all_routes() { return kRoutes; }

RouteMatch find_route(verb asked, std::string_view path) {
  RouteMatch found;
  for (const Route& route : kRoutes) {
    auto names = match(route.path, path);
    if (!names) continue;
    const auto name = boost::beast::http::to_string(route.verb);
    found.where = route.where;
    found.allow.append(found.allow.empty() ? "" : ", ").append(name.data(), name.size());
    if (route.verb != asked || found.route != nullptr) continue;
    found.route = &route;
    found.names = std::move(*names);
  }
  return found;
}

}  // namespace recurve
