#include "server/http/openai/sessions.h"

#include <charconv>
#include <string_view>
#include <utility>

#include "server/http/body_fields.h"
#include "server/http/query.h"
#include "server/http/unary_exchange.h"
#include "server/request/session_rules.h"

namespace recurve {
namespace {

using nlohmann::json;
using Kind = SessionCommand::Kind;

const char* name_of(Tier tier) {
  switch (tier) {
    case Tier::kEmpty:
      return "empty";
    case Tier::kSlot:
      return "slot";
    case Tier::kHost:
      return "host";
    case Tier::kDisk:
      break;
  }
  return "disk";
}

json session_object(const SessionInfo& info) {
  json session = {{"object", "session"},
                  {"id", info.name},
                  {"name", info.name},
                  {"parent", info.parent},
                  {"position", info.position},
                  {"pending_token", nullptr},
                  {"tier", name_of(info.tier)},
                  {"busy", info.busy},
                  {"epoch", info.epoch},
                  {"idle_seconds", info.idle_seconds},
                  {"ttl_seconds", info.ttl_seconds},
                  {"state_bytes", info.state_bytes},
                  {"host_bytes", info.host_bytes},
                  {"durability", info.durability == Durability::kLocal ? "local" : "none"},
                  {"commit", nullptr},
                  {"marks", json::array()}};
  if (info.pending_token) session["pending_token"] = *info.pending_token;
  if (info.commit) {
    session["commit"] = {{"owner_epoch", info.commit->owner_epoch},
                         {"number", info.commit->number},
                         {"position", info.commit->position}};
  }
  for (const MarkInfo& mark : info.marks) {
    session["marks"].push_back({{"name", mark.name}, {"position", mark.position}});
  }
  return session;
}

json one(const SessionCommand&, const SessionResult& result) {
  return session_object(result.sessions.front());
}

json list(const SessionCommand&, const SessionResult& result) {
  json data = json::array();
  for (const SessionInfo& info : result.sessions) data.push_back(session_object(info));
  return {{"object", "list"}, {"data", std::move(data)}, {"has_more", result.more}};
}

json deleted(const SessionCommand& command, const SessionResult&) {
  return {{"object", "session.deleted"}, {"id", command.name}, {"deleted", true}};
}

// Read where connections are, which do not wait for a long one.
json short_body(const HttpRequest& request) {
  constexpr size_t kMostBytes = 64 << 10;
  if (request.body.size() > kMostBytes) {
    throw BadField("", fmt::format("the body must have at most {} bytes, got {}", kMostBytes,
                                   request.body.size()));
  }
  return parse_object(request.body);
}

// Everything in it may be left out, so that all of it may.
json optional_body(const HttpRequest& request) {
  return request.body.empty() ? json::object() : short_body(request);
}

std::string mark_of(const HttpRequest& request) {
  return string_of(short_body(request), "mark").value_or("");
}

std::optional<Durability> durability_of(const json& body) {
  const auto name = string_of(body, "durability");
  if (!name) return {};
  if (*name == "none") return Durability::kNone;
  if (*name == "local") return Durability::kLocal;
  throw BadField("durability",
                 fmt::format("durability must be \"none\" or \"local\", got \"{}\"", *name));
}

SessionCommand to_open(const HttpRequest& request) {
  const json body = optional_body(request);
  return {.kind = Kind::kOpen,
          .name = string_of(body, "session").value_or(""),
          .ttl_seconds = number_of(body, "ttl_seconds"),
          .durability = durability_of(body)};
}

SessionCommand to_fork(const HttpRequest& request) {
  const json body = optional_body(request);
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
                   fmt::format("limit must be in [1, {}], got \"{}\"", kMaxPageSize, limit));
  }
  return {.kind = Kind::kList,
          .name = query_field(request.query, "prefix").value_or(""),
          .other = query_field(request.query, "after").value_or(""),
          .limit = count};
}

template <Kind kind>
SessionCommand to_command(const HttpRequest& request) {
  return {.kind = kind, .name = request.names.front()};
}

template <Kind kind>
SessionCommand to_mark_command(const HttpRequest& request) {
  return {.kind = kind, .name = request.names.front(), .other = mark_of(request)};
}

SessionCommand to_unmark(const HttpRequest& request) {
  return {.kind = Kind::kUnmark, .name = request.names[0], .other = request.names[1]};
}

std::shared_ptr<Exchange> begin(HttpContext& context, std::shared_ptr<Connection> connection,
                                HttpRequest request, UnaryExchange::ToCommand to_command,
                                UnaryExchange::ToObject to_object, int status = 200) {
  return std::make_shared<UnaryExchange>(std::move(connection), context.serving, std::move(request),
                                         std::move(to_command), std::move(to_object), status);
}

constexpr int kCreated = 201;

}  // namespace

std::shared_ptr<Exchange> open_session(HttpContext& context, std::shared_ptr<Connection> connection,
                                       HttpRequest request) {
  return begin(context, std::move(connection), std::move(request), to_open, one, kCreated);
}

std::shared_ptr<Exchange> get_session(HttpContext& context, std::shared_ptr<Connection> connection,
                                      HttpRequest request) {
  return begin(context, std::move(connection), std::move(request), to_command<Kind::kGet>, one);
}

std::shared_ptr<Exchange> list_sessions(HttpContext& context,
                                        std::shared_ptr<Connection> connection,
                                        HttpRequest request) {
  return begin(context, std::move(connection), std::move(request), to_list, list);
}

std::shared_ptr<Exchange> close_session(HttpContext& context,
                                        std::shared_ptr<Connection> connection,
                                        HttpRequest request) {
  return begin(context, std::move(connection), std::move(request), to_command<Kind::kClose>,
               deleted);
}

std::shared_ptr<Exchange> fork_session(HttpContext& context, std::shared_ptr<Connection> connection,
                                       HttpRequest request) {
  return begin(context, std::move(connection), std::move(request), to_fork, one, kCreated);
}

std::shared_ptr<Exchange> mark_session(HttpContext& context, std::shared_ptr<Connection> connection,
                                       HttpRequest request) {
  return begin(context, std::move(connection), std::move(request), to_mark_command<Kind::kMark>,
               one);
}

std::shared_ptr<Exchange> unmark_session(HttpContext& context,
                                         std::shared_ptr<Connection> connection,
                                         HttpRequest request) {
  return begin(context, std::move(connection), std::move(request), to_unmark, one);
}

std::shared_ptr<Exchange> rewind_session(HttpContext& context,
                                         std::shared_ptr<Connection> connection,
                                         HttpRequest request) {
  return begin(context, std::move(connection), std::move(request), to_mark_command<Kind::kRewind>,
               one);
}

}  // namespace recurve
