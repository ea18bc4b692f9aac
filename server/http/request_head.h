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

// What the head of a request says: what is asked for, and how it is to be answered.
struct RequestHead {
  RouteMatch match = {};                   // of a route, unless there is an `answer`
  std::string query = {};                  // behind the target's '?'
  bool keep_alive = true;                  // another request may follow
  bool chunks = true;                      // HTTP/1.1: an answer may come in chunks
  bool bodiless = false;                   // HEAD: of a response, its head
  bool continues = false;                  // the client waits to be told that its body is wanted
  std::string headers = {};                // of every response to it, each with its line's end
  std::optional<std::string> answer = {};  // a response that needs no body: a refusal, an OPTIONS
};

// Of a head.
inline constexpr uint32_t kMostHeadBytes = 16 << 10;

using HttpFields = boost::beast::http::request_header<boost::beast::http::fields>;

// keep_alive: what the head says of it.
RequestHead read_request_head(const HttpFields& fields, bool keep_alive,
                              const HttpOptions& options);

// A field of a head; empty where it is not there.
std::string_view field_of(const HttpFields& fields, std::string_view name);
// Of one that may be there several times, all, as one list with commas.
std::string all_of(const HttpFields& fields, std::string_view name);

}  // namespace recurve
