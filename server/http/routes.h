#pragma once
#include <boost/beast/http/verb.hpp>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/exchange.h"

namespace recurve {

struct HttpContext;

// Where a route is: wherever the door is, unless --http-page off, or also where --metrics listens.
enum class Where { kDoor, kPage, kEverywhere };

// What can be asked for, and what answers it: at once, or as an exchange.
struct Route {
  boost::beast::http::verb verb;
  std::string_view path;  // *: any one segment
  // JSON, which needs its content type; kOptional: or nothing.
  enum class Body { kNone, kOptional, kJson };
  Body body = Body::kNone;
  // The bytes of a response.
  std::string (*respond)(const HttpContext& context, const HttpRequest& request,
                         bool keep_alive) = nullptr;
  std::shared_ptr<Exchange> (*exchange)(HttpContext& context,
                                        std::shared_ptr<Connection> connection,
                                        HttpRequest request) = nullptr;
  Where where = Where::kDoor;
  Role least = Role::kUser;  // that may ask
};

std::span<const Route> all_routes();

struct RouteMatch {
  const Route* route = nullptr;         // null: there is none for this verb
  std::vector<std::string> names = {};  // what stood for each *
  std::string allow = {};               // the verbs of this path; empty: there is nothing there
  std::optional<Where> where = {};      // of the path, where there is something
};
// path: without a query.
RouteMatch find_route(boost::beast::http::verb verb, std::string_view path);

}  // namespace recurve
