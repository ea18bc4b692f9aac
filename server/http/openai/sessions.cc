#include "server/http/openai/sessions.h"

#include <utility>

#include "server/http/openai/session_commands.h"
#include "server/http/unary_exchange.h"

namespace recurve {
namespace {

using nlohmann::json;

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
                  {"in_doubt", info.in_doubt},
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

json session_json(const SessionCommand&, const SessionResult& result) {
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

std::shared_ptr<Exchange> begin(HttpContext& context, std::shared_ptr<Connection> connection,
                                HttpRequest request, UnaryExchange::ToCommand to_command,
                                UnaryExchange::ToObject to_object, int status = 200) {
  return std::make_shared<UnaryExchange>(std::move(connection), context.core, std::move(request),
                                         std::move(to_command), std::move(to_object), status);
}

constexpr int kCreated = 201;

}  // namespace

std::shared_ptr<Exchange> open_session(HttpContext& context, std::shared_ptr<Connection> connection,
                                       HttpRequest request) {
  return begin(context, std::move(connection), std::move(request), to_open, session_json, kCreated);
}

std::shared_ptr<Exchange> get_session(HttpContext& context, std::shared_ptr<Connection> connection,
                                      HttpRequest request) {
  return begin(context, std::move(connection), std::move(request), to_get, session_json);
}

std::shared_ptr<Exchange> list_sessions(HttpContext& context,
                                        std::shared_ptr<Connection> connection,
                                        HttpRequest request) {
  return begin(context, std::move(connection), std::move(request), to_list, list);
}

std::shared_ptr<Exchange> close_session(HttpContext& context,
                                        std::shared_ptr<Connection> connection,
                                        HttpRequest request) {
  return begin(context, std::move(connection), std::move(request), to_close, deleted);
}

std::shared_ptr<Exchange> fork_session(HttpContext& context, std::shared_ptr<Connection> connection,
                                       HttpRequest request) {
  return begin(context, std::move(connection), std::move(request), to_fork, session_json, kCreated);
}

std::shared_ptr<Exchange> mark_session(HttpContext& context, std::shared_ptr<Connection> connection,
                                       HttpRequest request) {
  return begin(context, std::move(connection), std::move(request), to_mark, session_json);
}

std::shared_ptr<Exchange> unmark_session(HttpContext& context,
                                         std::shared_ptr<Connection> connection,
                                         HttpRequest request) {
  return begin(context, std::move(connection), std::move(request), to_unmark, session_json);
}

std::shared_ptr<Exchange> rewind_session(HttpContext& context,
                                         std::shared_ptr<Connection> connection,
                                         HttpRequest request) {
  return begin(context, std::move(connection), std::move(request), to_rewind, session_json);
}

std::shared_ptr<Exchange> accept_session(HttpContext& context,
                                         std::shared_ptr<Connection> connection,
                                         HttpRequest request) {
  return begin(context, std::move(connection), std::move(request), to_accept, session_json);
}

}  // namespace recurve
