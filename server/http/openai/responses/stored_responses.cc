#include "server/http/openai/responses/stored_responses.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/http/query.h"
#include "server/request/session_command.h"

namespace recurve {
namespace {

using nlohmann::json;
using Kind = SessionCommand::Kind;

std::shared_ptr<const StoredResponse> stored(const HttpRequest& request, ServerCore& core,
                                             ResponseStore& store) {
  return store.find(request.caller.tenant, request.names.front(),
                    core.first().info.default_ttl_seconds);
}

// The items of a message: its text or a tool's result, and the calls.
class ItemList {
 public:
  explicit ItemList(std::string stem) : stem_(std::move(stem)) {}

  void add(const ChatMessage& message) {
    const ClientJson fields =
        message.fields_json.empty() ? ClientJson::object() : ClientJson::parse(message.fields_json);
    const std::string text = message.content.value_or("");
    if (message.role == "tool") {
      push("fc", {{"type", "function_call_output"},
                  {"call_id", fields.value("tool_call_id", "")},
                  {"output", text}});
      return;
    }
    const ClientJson calls = fields.value("tool_calls", ClientJson::array());
    if (!text.empty() || calls.empty()) {
      const bool answers = message.role == "assistant";
      json part = {{"type", answers ? "output_text" : "input_text"}, {"text", text}};
      if (answers) part["annotations"] = json::array();
      push("msg", {{"type", "message"},
                   {"role", message.role},
                   {"content", json::array({std::move(part)})}});
    }
    for (const ClientJson& call : calls) {
      const ClientJson& function = call.at("function");
      push("fc", {{"type", "function_call"},
                  {"call_id", call.value("id", "")},
                  {"name", function.value("name", "")},
                  {"arguments", dump(function.at("arguments"))}});
    }
  }

  std::vector<json> take() { return std::move(items_); }

 private:
  void push(const char* prefix, json item) {
    item["id"] = fmt::format("{}_{}_in_{}", prefix, stem_, items_.size());
    item["status"] = "completed";
    items_.push_back(std::move(item));
  }

  const std::string stem_;
  std::vector<json> items_;
};

// Throws BadField.
bool is_ascending(const HttpRequest& request) {
  const std::string order = query_field(request.query, "order").value_or("desc");
  if (order == "asc" || order == "desc") return order == "asc";
  throw BadField("order", fmt::format("order must be asc or desc, got {}", cut(order)));
}

json page_of(std::vector<json> items, const HttpRequest& request) {
  const auto limit = static_cast<size_t>(page_size(request.query, 20, 100));
  if (!is_ascending(request)) std::ranges::reverse(items);
  auto from = items.begin();
  if (const auto after = query_field(request.query, "after")) {
    const auto found = std::ranges::find_if(items, [&](const json& item) {
      return item["id"].get_ref<const std::string&>() == *after;
    });
    if (found == items.end()) {
      throw BadField("after", fmt::format("after must be the id of an item, got {}", cut(*after)));
    }
    from = found + 1;
  }
  const auto rest = static_cast<size_t>(items.end() - from);
  const auto to = from + static_cast<std::ptrdiff_t>(std::min(limit, rest));
  json page = {{"object", "list"}, {"data", json::array()}, {"has_more", rest > limit}};
  page["first_id"] = from == to ? json(nullptr) : from->at("id");
  page["last_id"] = from == to ? json(nullptr) : (to - 1)->at("id");
  for (; from != to; ++from) page["data"].push_back(std::move(*from));
  return page;
}

}  // namespace

Refused find_response(const HttpRequest& request, ServerCore& core, ResponseStore& store,
                      json* object) {
  const auto found = stored(request, core, store);
  if (found == nullptr) return unknown_response(request.names.front());
  *object = found->object;
  return {};
}

Refused delete_response(const HttpRequest& request, ServerCore& core, ResponseStore& store,
                        json* object) {
  const std::string& id = request.names.front();
  if (!store.erase(request.caller.tenant, id)) return unknown_response(id);
  close_stored(core, request.caller.tenant, id);
  *object = {{"id", id}, {"object", "response"}, {"deleted", true}};
  return {};
}

Refused cancel_response(const HttpRequest& request, ServerCore& core, ResponseStore& store, json*) {
  const std::string& id = request.names.front();
  if (stored(request, core, store) == nullptr) return unknown_response(id);
  return invalid("",
                 "response {} has ended: only responses in the background can be cancelled, and "
                 "this server has none; one that streams ends with its connection",
                 id);
}

Refused list_input_items(const HttpRequest& request, ServerCore& core, ResponseStore& store,
                         json* object) {
  const auto found = stored(request, core, store);
  if (found == nullptr) return unknown_response(request.names.front());
  ItemList list(found->id.substr(found->id.find('_') + 1));
  const std::vector<ChatMessage>& messages = found->turn->messages();  // the last is the answer
  for (size_t m = 0; m + 1 < messages.size(); ++m) list.add(messages[m]);
  try {
    *object = page_of(list.take(), request);
  } catch (const BadField& refused) {
    return invalid(refused.field, "{}", refused.what());
  }
  return {};
}

void close_stored(ServerCore& core, TenantId tenant, const std::string& id) {
  (void)core.post({.kind = Kind::kClose,
                   .caller = {.tenant = tenant},
                   .name = reserved_name(id),
                   .done = [](const SessionResult&) {}});
}

Refusal unknown_response(const std::string& id, const char* field) {
  return {.reason = EndReason::kNotFound,
          .message = fmt::format("unknown response \"{}\": it was not stored, was deleted or "
                                 "is too old",
                                 cut(id)),
          .field = field};
}

}  // namespace recurve
