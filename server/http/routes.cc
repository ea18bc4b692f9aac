#include "server/http/routes.h"

#include <optional>

#include "server/http/body_fields.h"

namespace recurve {
namespace {

std::string_view take_segment(std::string_view* path) {
  path->remove_prefix(1);  // '/'
  const std::string_view segment = path->substr(0, path->find('/'));
  path->remove_prefix(segment.size());
  return segment;
}

// The segment for each *, if the path is that of the pattern.
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

RouteMatch find_route(std::span<const HttpApi> apis, boost::beast::http::verb verb,
                      std::string_view path) {
  RouteMatch found;
  for (const HttpApi& api : apis) {
    for (const Route& route : api.routes) {
      auto names = match(route.path, path);
      if (!names) continue;
      const auto name = boost::beast::http::to_string(route.verb);
      found.allow.append(found.allow.empty() ? "" : ", ").append(name.data(), name.size());
      found.error_body = api.error_body;
      if (route.verb != verb || found.route != nullptr) continue;
      found.route = &route;
      found.names = std::move(*names);
    }
  }
  return found;
}

Route::Respond json_handler(
    const ServerCore& core,
    std::function<Refused(const HttpRequest& request, nlohmann::json* object)> write) {
  return [&core, write = std::move(write)](const HttpRequest& request) {
    Refused refused = core.availability();
    nlohmann::json object;
    if (!refused) refused = write(request, &object);
    return refused ? refusal_response(request, *refused) : json_response(request, dump(object));
  };
}

}  // namespace recurve
