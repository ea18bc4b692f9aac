#include <utility>

#include "server/http/body_fields.h"
#include "server/http/openai/fields/request_fields.h"
#include "server/http/openai/responses/responses.h"

namespace recurve {
namespace {

std::string take_text_of_part(ClientJson& part) {
  const std::string type = part.is_object() ? string_of(part, "type").value_or("") : "";
  if (type == "refusal") return take_string(part, "refusal").value_or("");
  if (type != "input_text" && type != "output_text" && type != "text" && type != "reasoning_text") {
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

ClientJson arguments_of(ClientJson& item, ValueBudget& budget) {
  auto arguments = json_object(take_string(item, "arguments").value_or("{}"), budget);
  if (arguments) return *std::move(arguments);
  throw BadField("input", "arguments of a function_call in input must be a JSON object");
}

// Reads the items of an input in their order. A message of the assistant and the calls that follow
// it are one turn.
class InputReader {
 public:
  InputReader(size_t items, size_t bytes) : budget_{.most = most_values(bytes)} {
    messages_.reserve(items);
  }

  void add(ClientJson& item) {
    if (!item.is_object()) throw BadField("input", "each item of input must be an object");
    const std::string type = string_of(item, "type").value_or("message");
    if (type == "message") {
      add_message(item);
    } else if (type == "function_call") {
      add_call(item, arguments_of(item, budget_));
    } else if (type == "custom_tool_call") {
      add_call(item, arguments_of_custom(item));
    } else if (type == "function_call_output" || type == "custom_tool_call_output") {
      add_output(item);
    } else if (type == "reasoning") {
      add_reasoning(item);
    } else {
      throw BadField("input",
                     fmt::format("items of type \"{}\" are not supported in input", cut(type)));
    }
  }

  std::vector<ChatMessage> take() {
    end_turn();
    return std::move(messages_);
  }

 private:
  // An assistant's message without content, which a call of a tool follows, has nothing to render.
  void add_message(ClientJson& item) {
    std::string role = string_of(item, "role").value_or("");
    if (role == "assistant" && find(item, "content") == nullptr) return;
    end_turn();
    const bool answers = role == "assistant";
    messages_.push_back({.role = std::move(role), .content = take_text(item, "content")});
    std::string thoughts = std::exchange(thoughts_, "");
    if (answers && !thoughts.empty()) fields_["reasoning_content"] = std::move(thoughts);
  }

  // The reasoning before a message or a call; what a summary says is not the model's own.
  void add_reasoning(ClientJson& item) {
    if (find(item, "content") != nullptr) thoughts_ += take_text(item, "content");
  }

  void add_call(ClientJson& item, ClientJson arguments) {
    if (calls_.empty() && (messages_.empty() || messages_.back().role != "assistant")) {
      messages_.push_back({.role = "assistant", .content = ""});
    }
    if (!thoughts_.empty()) {
      thoughts_.insert(0, fields_.value("reasoning_content", ""));
      fields_["reasoning_content"] = std::exchange(thoughts_, "");
    }
    calls_.push_back(function_call(string_of(item, "call_id").value_or(""),
                                   string_of(item, "name").value_or(""), std::move(arguments)));
  }

  void add_output(ClientJson& item) {
    end_turn();
    const ClientJson fields = {{"tool_call_id", string_of(item, "call_id").value_or("")}};
    messages_.push_back(
        {.role = "tool", .content = take_text(item, "output"), .fields_json = dump(fields)});
  }

  void end_turn() {
    if (!calls_.empty()) fields_["tool_calls"] = std::exchange(calls_, ClientJson::array());
    if (!fields_.empty()) messages_.back().fields_json = dump(fields_);
    fields_ = ClientJson::object();
  }

  ValueBudget budget_;
  std::vector<ChatMessage> messages_;
  std::string thoughts_;                      // the reasoning since the last message and call
  ClientJson calls_ = ClientJson::array();    // of the last message
  ClientJson fields_ = ClientJson::object();  // of it, besides the calls
};

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
  InputReader reader(input->size(), bytes);
  for (ClientJson& item : *input) reader.add(item);
  *input = nullptr;
  return reader.take();
}

nlohmann::json take_other_tools(ClientJson& body) {
  ClientJson* tools = find(body, "tools");
  nlohmann::json others = nlohmann::json::array();
  if (tools == nullptr) return others;
  check_tools(*tools);
  ClientJson functions = ClientJson::array();
  for (ClientJson& tool : *tools) {
    const std::string type = tool.is_object() ? string_of(tool, "type").value_or("") : "";
    if (type.empty()) throw BadField("tools", "each of tools must be an object with a type");
    if (type == "function") {
      check_tool_fields(tool);
      if (bool_of(tool, "defer_loading").value_or(false)) {
        throw BadField("tools", "defer_loading of a tool is not supported here: leave it out");
      }
      functions.push_back(std::move(tool));
      continue;
    }
    nlohmann::json& other = others.emplace_back(nlohmann::json{{"type", cut(type)}});
    if (const auto name = string_of(tool, "name")) other["name"] = cut(*name);
  }
  *tools = functions.empty() && !others.empty() ? ClientJson(nullptr) : std::move(functions);
  return others;
}

std::string tools_of_response(const ClientJson& body) {
  if (!wants_tools(body)) return {};
  ClientJson functions = ClientJson::array();
  for (const ClientJson& tool : body.at("tools")) {
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
