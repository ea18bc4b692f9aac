#pragma once
#include <boost/beast/http/verb.hpp>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "server/http/exchange.h"
#include "server/serving/server_core.h"

namespace recurve {

// A method and a path, and what answers them: at once, or as an exchange.
struct Route {
  // Returns the bytes of a response.
  using Respond = std::function<std::string(const HttpRequest& request)>;
  using Begin = std::function<std::shared_ptr<Exchange>(std::shared_ptr<Connection> connection,
                                                        HttpRequest request)>;
  // JSON, which needs its content type; kOptional: or nothing. kState: a serialized state, as long
  // as the model's may be.
  enum class Body { kNone, kOptional, kJson, kState };

  boost::beast::http::verb verb;
  std::string_view path;  // *: any one segment
  Body body;
  std::variant<Respond, Begin> handler;
  Role least = Role::kUser;  // the least role that may ask

  bool is_exchange() const { return std::holds_alternative<Begin>(handler); }
};

// A set of resources that the HTTP server is given: a dialect, or a part of the server's own. Its
// state belongs to its handlers, which are called on the thread of all connections.
struct HttpApi {
  std::vector<Route> routes;
  ErrorBody error_body = error_object;
};

struct RouteMatch {
  const Route* route = nullptr;         // null: none for this method
  std::vector<std::string> names = {};  // the segment of the path for each *
  std::string allow = {};               // the methods of this path; empty: it is unknown
  ErrorBody error_body = error_object;  // of the API that has the path
};
// path: without a query.
RouteMatch find_route(std::span<const HttpApi> apis, boost::beast::http::verb verb,
                      std::string_view path);

// A handler that responds at once with the object that `write` writes, while the server serves.
Route::Respond json_handler(
    const ServerCore& core,
    std::function<Refused(const HttpRequest& request, nlohmann::json* object)> write);

}  // namespace recurve
