#pragma once
#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/message.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>  // Boost 1.74 leaves it out

#include "server/http/routes.h"
#include "server/http/server.h"

namespace recurve {

// The head of a request: what it asks for, and how to answer it.
struct RequestHead {
  RouteMatch match = {};                   // has a route, unless there is an `answer`
  std::string query = {};                  // behind the target's '?'
  bool keep_alive = true;                  // another request may follow
  bool chunks = true;                      // HTTP/1.1: an answer may come in chunks
  bool bodiless = false;                   // HEAD: only the head of the response is sent
  bool continues = false;                  // the client waits for 100 Continue
  std::string headers = {};                // of every response to it, each with its line's end
  std::optional<std::string> answer = {};  // a response that needs no body: a refusal, an OPTIONS
};

inline constexpr uint32_t kMostHeadBytes = 16 << 10;

using HttpFields = boost::beast::http::request_header<boost::beast::http::fields>;

// keep_alive: whether the head and the server allow another request.
RequestHead read_request_head(const HttpFields& fields, bool keep_alive, const HttpOptions& options,
                              std::span<const HttpApi> apis);

// A field of a head; empty if it is absent.
std::string_view field_of(const HttpFields& fields, std::string_view name);
// Authorization, or the key that Anthropic's clients send in x-api-key.
std::string authorization_of(const HttpFields& fields);
// All values of a field that may be repeated, as one list with commas.
std::string all_of(const HttpFields& fields, std::string_view name);

// Why a request may not be answered because of its host or its origin; empty: it may. So no page in
// a browser reaches a server through a user that can reach it: DNS rebinding fails at `host`,
// requests across origins at `origin`.
//
// `host` must be an address, a name that cannot be registered in public (localhost, a name of one
// part as containers have, or one under .localhost, .internal, .svc or .svc.cluster.local), this
// machine's name, or an allowed one. It is empty if there is none, which HTTP/1.0 allows and no
// browser sends. `origin` must be missing, the host's, or allowed. `allowed`: origins, such as
// "https://example.com", which allow their name too; names, such as "example.com"; or "*": all.
// `scheme`: by which clients reach the server.
std::string origin_problem(std::string_view host, std::string_view origin,
                           const std::vector<std::string>& allowed,
                           std::string_view scheme = "http");

}  // namespace recurve
