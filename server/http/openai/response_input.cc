#include "server/http/openai/response_input.h"

#include <utility>

#include "server/http/body_fields.h"
#include "server/http/openai/tool_fields.h"
#include "server/text/client_json.h"

namespace recurve {
namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;

std::string text_of_part(const json& part) {
  const std::string type = part.is_object() ? string_of(part, "type").value_or("") : "";
  if (type != "input_text" && type != "output_text" && type != "text") {
    throw BadField("input",
                   fmt::format("input must be text, got content of type \"{}\"", cut(type)));
  }
  return string_of(part, "text").value_or("");
}

std::string text_of_content(const json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) throw BadField("input", "content must be a string or a list of parts");
  std::string text;
  for (const json& part : content) text += text_of_part(part);
  return text;
}

const json& content_of(const json& item, const char* field) {
  const json* content = find(item, field);
  if (content == nullptr) throw BadField("input", fmt::format("an item of input needs {}", field));
  return *content;
}

ChatMessage message(const json& item) {
  return {.role = string_of(item, "role").value_or(""),
          .content = text_of_content(content_of(item, "content"))};
}

ChatMessage call(const json& item) {
  const std::string arguments = string_of(item, "arguments").value_or("{}");
  if (!is_json_object(arguments)) {
    throw BadField("input", "arguments of a function_call in input must be a JSON object");
  }
  const Ordered function = {{"name", string_of(item, "name").value_or("")},
                            {"arguments", arguments}};
  const Ordered one = {{"id", string_of(item, "call_id").value_or("")},
                       {"type", "function"},
                       {"function", function}};
  return {
      .role = "assistant",
      .content = "",
      .fields_json = dump_ordered({{"tool_calls", with_read_arguments(Ordered::array({one}))}})};
}

ChatMessage call_output(const json& item) {
  const json fields = {{"tool_call_id", string_of(item, "call_id").value_or("")}};
  return {.role = "tool",
          .content = text_of_content(content_of(item, "output")),
          .fields_json = dump(fields)};
}

void add_item(const json& item, std::vector<ChatMessage>* to) {
  if (!item.is_object()) throw BadField("input", "each item of input must be an object");
  const std::string type = string_of(item, "type").value_or("message");
  if (type == "message") {
    to->push_back(message(item));
  } else if (type == "function_call") {
    to->push_back(call(item));
  } else if (type == "function_call_output") {
    to->push_back(call_output(item));
  } else if (type != "reasoning") {  // which is said of an answer, and no part of it
    throw BadField("input",
                   fmt::format("items of type \"{}\" are not supported in input", cut(type)));
  }
}

}  // namespace

std::vector<ChatMessage> messages_of_input(const json& body) {
  const json* input = find(body, "input");
  if (input == nullptr) throw BadField("input", "input must be given");
  if (input->is_string()) return {{.role = "user", .content = input->get<std::string>()}};
  if (!input->is_array()) throw BadField("input", "input must be a string or a list of items");
  std::vector<ChatMessage> messages;
  messages.reserve(input->size());
  for (const json& item : *input) add_item(item, &messages);
  return messages;
}

std::string tools_of_response(const json& body, std::string_view text) {
  if (!wants_tools(body)) return {};
  Ordered ordered = read_in_order(text);
  const FreesInPlace<Ordered> frees(ordered);
  Ordered functions = Ordered::array();
  for (const Ordered& tool : ordered.at("tools")) {
    if (!tool.is_object() || tool.value("type", Ordered()) != "function") {
      throw BadField("tools", "each of tools must be a function: this server has none of its own");
    }
    Ordered function = tool;
    function.erase("type");
    if (function.value("strict", Ordered(true)) != Ordered(false)) function.erase("strict");
    functions.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return dump_ordered(functions);
}

}  // namespace recurve
