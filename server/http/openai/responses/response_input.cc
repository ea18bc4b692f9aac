#include <utility>

#include "server/http/body_fields.h"
#include "server/http/openai/fields/request_fields.h"
#include "server/http/openai/responses/responses.h"

namespace recurve {
namespace {

std::string take_text_of_part(ClientJson& part) {
  const std::string type = part.is_object() ? string_of(part, "type").value_or("") : "";
  if (type == "refusal") return take_string(part, "refusal").value_or("");
  if (type != "input_text" && type != "output_text" && type != "text") {
    throw BadField("input",
                   fmt::format("input must be text, got content of type \"{}\"", cut(type)));
  }
  return take_string(part, "text").value_or("");
}

std::string take_text(ClientJson& item, const char* field) {
  ClientJson* content = find(item, field);
  if (content == nullptr) throw BadField("input", fmt::format("an item of input needs {}", field));
  if (content->is_string()) return std::move(content->get_ref<std::string&>());
  if (!content->is_array()) throw BadField("input", "content must be a string or a list of parts");
  if (content->size() == 1) return take_text_of_part(content->front());
  std::string text;
  for (ClientJson& part : *content) text += take_text_of_part(part);
  return text;
}

// An assistant's message without content, which a call of a tool follows, has nothing to render.
void add_message(ClientJson& item, std::vector<ChatMessage>* to) {
  std::string role = string_of(item, "role").value_or("");
  if (role == "assistant" && find(item, "content") == nullptr) return;
  to->push_back({.role = std::move(role), .content = take_text(item, "content")});
}

ClientJson arguments_of(ClientJson& item, ValueBudget& budget) {
  auto arguments = json_object(take_string(item, "arguments").value_or("{}"), budget);
  if (arguments) return *std::move(arguments);
  throw BadField("input", "arguments of a function_call in input must be a JSON object");
}

// A custom tool has one text as its input: templates get it as the argument "input".
ClientJson input_of(ClientJson& item) {
  return {{"input", take_string(item, "input").value_or("")}};
}

ChatMessage call(ClientJson& item, ClientJson arguments) {
  ClientJson function = {{"name", string_of(item, "name").value_or("")}, {"arguments", nullptr}};
  function["arguments"] = std::move(arguments);
  ClientJson fields = {{"tool_calls", ClientJson::array()}};
  ClientJson& one = fields["tool_calls"].emplace_back(ClientJson::object());
  one["id"] = string_of(item, "call_id").value_or("");
  one["type"] = "function";
  one["function"] = std::move(function);
  return {.role = "assistant", .content = "", .fields_json = dump(fields)};
}

ChatMessage call_output(ClientJson& item) {
  const ClientJson fields = {{"tool_call_id", string_of(item, "call_id").value_or("")}};
  return {.role = "tool", .content = take_text(item, "output"), .fields_json = dump(fields)};
}

void add_item(ClientJson& item, ValueBudget& budget, std::vector<ChatMessage>* to) {
  if (!item.is_object()) throw BadField("input", "each item of input must be an object");
  const std::string type = string_of(item, "type").value_or("message");
  if (type == "message") {
    add_message(item, to);
  } else if (type == "function_call") {
    to->push_back(call(item, arguments_of(item, budget)));
  } else if (type == "custom_tool_call") {
    to->push_back(call(item, input_of(item)));
  } else if (type == "function_call_output" || type == "custom_tool_call_output") {
    to->push_back(call_output(item));
  } else if (type != "reasoning") {  // not part of the answer's text
    throw BadField("input",
                   fmt::format("items of type \"{}\" are not supported in input", cut(type)));
  }
}

}  // namespace

std::vector<ChatMessage> take_messages_of_input(ClientJson& body, size_t bytes) {
  ClientJson* input = find(body, "input");
  if (input == nullptr) throw BadField("input", "input must be given");
  if (input->is_string()) {
    return {{.role = "user", .content = std::move(input->get_ref<std::string&>())}};
  }
  if (!input->is_array() || input->empty()) {
    throw BadField("input", "input must be a string or a list of at least one item");
  }
  check_messages(input->size(), "input", bytes);
  std::vector<ChatMessage> messages;
  messages.reserve(input->size());
  ValueBudget budget{.most = most_values(bytes)};
  for (ClientJson& item : *input) add_item(item, budget, &messages);
  *input = nullptr;
  return messages;
}

std::string tools_of_response(const ClientJson& body) {
  if (!wants_tools(body)) return {};
  ClientJson functions = ClientJson::array();
  for (const ClientJson& tool : body.at("tools")) {
    if (!tool.is_object() || tool.value("type", ClientJson()) != "function") {
      throw BadField("tools",
                     "each of tools must be a function: this server has no built-in tools");
    }
    ClientJson function = tool;
    function.erase("type");
    if (function.value("strict", ClientJson(true)) != ClientJson(false)) function.erase("strict");
    ClientJson& one = functions.emplace_back(ClientJson::object());
    one["type"] = "function";
    one["function"] = std::move(function);
  }
  return dump(functions);
}

}  // namespace recurve
