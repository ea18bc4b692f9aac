#include "server/http/openai/session_commands.h"

#include <charconv>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "server/http/body_fields.h"
#include "server/http/openai/fields/request_fields.h"
#include "server/http/query.h"
#include "server/serving/session_rules.h"

namespace recurve {
namespace {

using Kind = SessionCommand::Kind;

using Names = std::initializer_list<std::string_view>;

// Read where connections are, which do not wait for a long one.
ClientJson short_body(const HttpRequest& request, Names fields) {
  constexpr size_t kMostBytes = 64 << 10;
  if (request.body.size() > kMostBytes) {
    throw BadField("", fmt::format("the body must have at most {} bytes, got {}", kMostBytes,
                                   request.body.size()));
  }
  ClientJson body = parse_object(request.body);
  check_names(body, fields);
  return body;
}

// Everything in it may be left out, so that all of it may.
ClientJson optional_body(const HttpRequest& request) {
  if (request.body.empty()) return ClientJson::object();
  return short_body(request, {"session", "ttl_seconds", "durability"});
}

std::string mark_of(const HttpRequest& request) {
  return string_of(short_body(request, {"mark"}), "mark").value_or("");
}

std::optional<Durability> durability_of(const ClientJson& body) {
  const auto name = string_of(body, "durability");
  if (!name) return {};
  if (*name == "none") return Durability::kNone;
  if (*name == "local") return Durability::kLocal;
  throw BadField("durability",
                 fmt::format("durability must be \"none\" or \"local\", got \"{}\"", cut(*name)));
}

SessionCommand to_mark_command(Kind kind, const HttpRequest& request) {
  return {.kind = kind, .name = request.names.front(), .other = mark_of(request)};
}

}  // namespace

SessionCommand to_open(const HttpRequest& request) {
  const ClientJson body = optional_body(request);
  std::string name = request.session;
  read_session(body, &name);
  return {.kind = Kind::kOpen,
          .name = std::move(name),
          .ttl_seconds = number_of(body, "ttl_seconds"),
          .durability = durability_of(body)};
}

SessionCommand to_fork(const HttpRequest& request) {
  const ClientJson body = optional_body(request);
  return {.kind = Kind::kFork,
          .name = request.names.front(),
          .other = string_of(body, "session").value_or(""),
          .ttl_seconds = number_of(body, "ttl_seconds"),
          .durability = durability_of(body)};
}

SessionCommand to_list(const HttpRequest& request) {
  const std::string limit = query_field(request.query, "limit").value_or("");
  int count = limit.empty() ? kDefaultPageSize : 0;
  std::from_chars(limit.data(), limit.data() + limit.size(), count);
  if (count < 1 || count > kMaxPageSize || (!limit.empty() && limit != std::to_string(count))) {
    throw BadField("limit",
                   fmt::format("limit must be in [1, {}], got \"{}\"", kMaxPageSize, cut(limit)));
  }
  return {.kind = Kind::kList,
          .name = query_field(request.query, "prefix").value_or(""),
          .other = query_field(request.query, "after").value_or(""),
          .limit = count};
}

SessionCommand to_get(const HttpRequest& request) {
  return {.kind = Kind::kGet, .name = request.names.front()};
}

SessionCommand to_close(const HttpRequest& request) {
  return {.kind = Kind::kClose, .name = request.names.front()};
}

SessionCommand to_mark(const HttpRequest& request) { return to_mark_command(Kind::kMark, request); }

SessionCommand to_unmark(const HttpRequest& request) {
  return {.kind = Kind::kUnmark, .name = request.names[0], .other = request.names[1]};
}

SessionCommand to_rewind(const HttpRequest& request) {
  return to_mark_command(Kind::kRewind, request);
}

SessionCommand to_accept(const HttpRequest& request) {
  return {.kind = Kind::kAccept, .name = request.names.front()};
}

}  // namespace recurve
