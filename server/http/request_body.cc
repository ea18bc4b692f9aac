#include "server/http/request_body.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/http/body_fields.h"
#include "server/http/query.h"
#include "server/text/chat/chat_input.h"

namespace recurve {
namespace {

// Refuses a field that would change the answer and is not read by this resource.
void check_fields(const ClientJson& body, const FieldTable& table) {
  for (const RequestField& field : table.fields) {
    const ClientJson* value = find(body, field.name);
    if (value == nullptr) continue;
    const bool is_read = (field.read_by & table.resource) != 0;
    const bool is_empty = value->is_structured() && value->empty();
    if (is_read ? !is_empty : field.is_harmless) continue;
    const std::string text = value->is_binary() ? std::string() : dump(*value);
    const bool same = std::any_of(field.same.begin(), field.same.end(),
                                  [&](const char* one) { return one != nullptr && text == one; });
    if (same) continue;
    throw BadField(field.name,
                   is_read ? fmt::format("{} must not be empty: leave it out", field.name)
                           : fmt::format("{} is not supported here: leave it out", field.name));
  }
}

}  // namespace

Refused read_body(std::string text, const WorkLimits& limits, const FieldTable& table,
                  std::span<const std::string_view> id_fields, const ModelQuery& query,
                  const std::function<void(ClientJson& body)>& read) {
  ClientJson body = parse_object(text, limits, id_fields);
  std::string().swap(text);
  if (Refused refused = find_model(body, table.session, query)) return refused;
  check_fields(body, table);
  read(body);
  return {};
}

Refused find_model(const ClientJson& body, const char* session, const ModelQuery& query) {
  std::string continued = query.session;
  if (session != nullptr && continued.empty()) continued = string_of(body, session).value_or("");
  return query.core.find({.name = string_of(body, "model").value_or(""),
                          .caller = query.caller,
                          .session = std::move(continued)},
                         query.found);
}

Refused find_model(const HttpRequest& request, const ServerCore& core, FoundModel* model) {
  return core.find(
      {.name = query_field(request.query, "model").value_or(""), .caller = request.caller}, model);
}

void check_messages(size_t count, const char* field, size_t bytes) {
  const size_t most = most_messages(bytes);
  if (count <= most) return;
  throw BadField(field, fmt::format("{} must have at most {} entries in a body of {} bytes, got {}",
                                    field, most, bytes, count));
}

void check_tools(const ClientJson& tools) {
  if (!tools.is_array()) throw BadField("tools", "tools must be a list");
  constexpr size_t kMost = 4096;
  if (tools.size() <= kMost) return;
  throw BadField("tools", fmt::format("tools must be at most {}, got {}", kMost, tools.size()));
}

void check_tool_fields(const ClientJson& tool) {
  const auto refuse = [](const char* what) {
    throw BadField("tools", fmt::format("{} is not supported here: leave it out", what));
  };
  if (bool_of(tool, "async").value_or(false)) refuse("async of a tool");
  const ClientJson* examples = find(tool, "input_examples");
  if (examples != nullptr && *examples != ClientJson::array()) refuse("input_examples of a tool");
  const ClientJson* callers = find(tool, "allowed_callers");
  if (callers == nullptr) return;
  const bool is_direct =
      callers->is_array() && std::ranges::find(*callers, ClientJson("direct")) != callers->end();
  if (!is_direct) refuse("allowed_callers of a tool without \"direct\"");
}

BindingNames chosen_of(const ClientJson& body) {
  return {.initial_state = string_of(body, "initial_state").value_or(""),
          .adapter = string_of(body, "adapter").value_or("")};
}

void read_any_whitespace(const ClientJson& body, TextRequest* asked) {
  if (!bool_of(body, "any_whitespace").value_or(false)) return;
  if (!asked->constraint) {
    throw BadField("any_whitespace",
                   "any_whitespace must be left out without a constraint of the answer");
  }
  asked->constraint->any_whitespace = true;
}

ClientJson function_call(std::string id, std::string name, ClientJson arguments) {
  ClientJson function = {{"name", std::move(name)}, {"arguments", nullptr}};
  function["arguments"] = std::move(arguments);
  ClientJson call = {{"id", std::move(id)}, {"type", "function"}, {"function", nullptr}};
  call["function"] = std::move(function);
  return call;
}

std::optional<ClientJson> json_object(std::string_view text, ValueBudget& budget) {
  try {
    ClientJson object = read_client_json(text, "arguments of calls", kMaxBodyLevels, {}, budget);
    if (object.is_object()) return object;
  } catch (const TooManyValues& refused) {
    throw BadField("", refused.what());
  } catch (const JsonRefused&) {
  }
  return {};
}

}  // namespace recurve
