#include "server/http/openai/sessions.h"

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "server/http/body_fields.h"
#include "server/http/openai/fields/request_fields.h"
#include "server/http/openai/state_export.h"
#include "server/http/query.h"
#include "server/http/unary_exchange.h"

namespace recurve {
namespace {

using boost::beast::http::verb;
using nlohmann::json;
using Kind = SessionCommand::Kind;

using Names = std::initializer_list<std::string_view>;

// Read on the thread of all connections, so it is bounded.
ClientJson short_body(const HttpRequest& request, Names fields) {
  constexpr size_t kMaxBytes = 64 << 10;
  if (request.body.size() > kMaxBytes) {
    throw BadField("", fmt::format("the body must have at most {} bytes, got {}", kMaxBytes,
                                   request.body.size()));
  }
  ClientJson body = parse_object(request.body);
  check_names(body, fields);
  return body;
}

// Each of its fields is optional, so the body is too.
ClientJson optional_body(const HttpRequest& request, Names fields) {
  if (request.body.empty()) return ClientJson::object();
  return short_body(request, fields);
}

std::string mark_of(const HttpRequest& request) {
  return string_of(short_body(request, {"mark"}), "mark").value_or("");
}

std::optional<Durability> durability_of(const std::optional<std::string>& name) {
  if (!name) return {};
  if (*name == "none") return Durability::kNone;
  if (*name == "local") return Durability::kLocal;
  if (*name == "remote") return Durability::kRemote;
  throw BadField(
      "durability",
      fmt::format("durability must be \"none\", \"local\" or \"remote\", got \"{}\"", cut(*name)));
}

SessionCommand to_mark_command(Kind kind, const HttpRequest& request) {
  return {.kind = kind, .name = request.names.front(), .other = mark_of(request)};
}

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
                  {"model", info.model},
                  {"parent", info.parent},
                  {"initial_state", info.binding.initial_state},
                  {"adapter", info.binding.adapter},
                  {"position", info.position},
                  {"pending_token", nullptr},
                  {"tier", name_of(info.tier)},
                  {"busy", info.busy},
                  {"epoch", info.epoch},
                  {"idle_seconds", info.idle_seconds},
                  {"ttl_seconds", info.ttl_seconds},
                  {"state_bytes", info.state_bytes},
                  {"page_bytes", info.page_bytes},
                  {"rewind_tokens", info.rewind_tokens},
                  {"tokens_from", info.tokens_from},
                  {"host_bytes", info.host_bytes},
                  {"durability", info.durability == Durability::kRemote  ? "remote"
                                 : info.durability == Durability::kLocal ? "local"
                                                                         : "none"},
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

}  // namespace

SessionCommand to_open(const HttpRequest& request) {
  const ClientJson body = optional_body(request, {"session", "model", "ttl_seconds", "durability",
                                                  "initial_state", "adapter", "rewind_tokens"});
  std::string name = request.session;
  read_session(body, &name);
  return {.kind = Kind::kOpen,
          .model = string_of(body, "model").value_or(""),
          .name = std::move(name),
          .ttl_seconds = number_of(body, "ttl_seconds"),
          .durability = durability_of(string_of(body, "durability")),
          .chosen = chosen_of(body),
          .rewind_tokens = integer_of(body, "rewind_tokens").value_or(0)};
}

SessionCommand to_fork(const HttpRequest& request) {
  const ClientJson body = optional_body(request, {"session", "ttl_seconds", "durability"});
  return {.kind = Kind::kFork,
          .name = request.names.front(),
          .other = string_of(body, "session").value_or(""),
          .ttl_seconds = number_of(body, "ttl_seconds"),
          .durability = durability_of(string_of(body, "durability"))};
}

SessionCommand to_list(const HttpRequest& request) {
  return {.kind = Kind::kList,
          .model = query_field(request.query, "model").value_or(""),
          .name = query_field(request.query, "prefix").value_or(""),
          .other = query_field(request.query, "after").value_or(""),
          .limit = page_size(request.query, kDefaultPageSize, kMaxPageSize)};
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
  const ClientJson body = short_body(request, {"mark", "position"});
  return {.kind = Kind::kRewind,
          .name = request.names.front(),
          .other = string_of(body, "mark").value_or(""),
          .position = integer_of(body, "position")};
}

SessionCommand to_accept(const HttpRequest& request) {
  return {.kind = Kind::kAccept, .name = request.names.front()};
}

Refused read_import(const HttpRequest& request, const ServerCore& core, SessionCommand* command) {
  FoundModel model;
  if (Refused refused = find_model(request, core, &model)) return refused;
  *command = {.kind = Kind::kImport,
              .model = model->name(),
              .name = request.names.front(),
              .ttl_seconds = query_number<double>(request.query, "ttl_seconds"),
              .durability = durability_of(query_field(request.query, "durability")),
              .chosen = {.adapter = model.adapter},
              .rewind_tokens = query_number<int64_t>(request.query, "rewind_tokens").value_or(0)};
  return read_state(model->info, request.body, /*cut=*/false, command);
}

std::vector<Route> session_routes(ServerCore& core) {
  using enum Route::Body;
  constexpr int kCreated = 201;
  const auto answer = [&](ToSessionCommand* to_command, auto to_object, int status = 200) {
    return UnaryExchange::command_handler(core, to_command, to_object, status);
  };
  return {
      {verb::get, "/v1/sessions", kNone, answer(to_list, list)},
      {verb::post, "/v1/sessions", kOptional, answer(to_open, session_json, kCreated)},
      {verb::get, "/v1/sessions/*", kNone, answer(to_get, session_json)},
      {verb::delete_, "/v1/sessions/*", kNone, answer(to_close, deleted)},
      {verb::post, "/v1/sessions/*/fork", kOptional, answer(to_fork, session_json, kCreated)},
      {verb::post, "/v1/sessions/*/marks", kJson, answer(to_mark, session_json)},
      {verb::delete_, "/v1/sessions/*/marks/*", kNone, answer(to_unmark, session_json)},
      {verb::post, "/v1/sessions/*/rewind", kJson, answer(to_rewind, session_json)},
      {verb::post, "/v1/sessions/*/accept", kNone, answer(to_accept, session_json)},
      {verb::get, "/v1/sessions/*/state", kNone, StateExport::handler(core)},
      {verb::put, "/v1/sessions/*/state", kState,
       UnaryExchange::command_handler(core, UnaryExchange::ReadCommand(read_import), session_json,
                                      kCreated)},
  };
}

}  // namespace recurve
