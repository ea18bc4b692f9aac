#include "server/http/body_fields.h"
#include "server/http/openai/fields/request_fields.h"

namespace recurve {
namespace {

// The fields of a choice, which chats have in an object with the name of its type, and responses
// next to the type; null if it has another type.
const ClientJson* fields_of(const ClientJson& choice, const char* type) {
  if (!choice.is_object() || string_of(choice, "type") != type) return nullptr;
  const ClientJson* holder = find(choice, type);
  if (holder == nullptr) return &choice;
  return holder->is_object() ? holder : nullptr;
}

std::string name_of(const ClientJson& function) {
  const ClientJson* fields = fields_of(function, "function");
  if (const auto name = fields != nullptr ? string_of(*fields, "name") : std::nullopt) return *name;
  throw BadField("tool_choice",
                 "tool_choice must be \"none\", \"auto\", \"required\", {\"type\": \"function\", "
                 "\"function\": {\"name\": ...}} or one of the type \"allowed_tools\"");
}

// {"mode": "auto" or "required", "tools": [{"type": "function", ...}, ...]}
ToolUse allowed_tools(const ClientJson& fields, bool parallel) {
  const auto mode = string_of(fields, "mode");
  if (mode != "auto" && mode != "required") {
    throw BadField("tool_choice",
                   "the mode of tool_choice with allowed_tools must be \"auto\" or \"required\"");
  }
  const ClientJson* tools = find(fields, "tools");
  if (tools == nullptr || !tools->is_array() || tools->empty()) {
    throw BadField("tool_choice", "the tools of tool_choice must be a list of functions");
  }
  ToolUse use{.required = mode == "required", .parallel = parallel};
  for (const ClientJson& tool : *tools) use.allowed.push_back(name_of(tool));
  return use;
}

// {"type": "custom", "custom": {"name": ..., "input": ...}} becomes the call of a function.
void read_custom_call(ClientJson& call) {
  ClientJson* custom = string_of(call, "type") == "custom" ? find(call, "custom") : nullptr;
  if (custom == nullptr || !custom->is_object()) return;
  ClientJson function = {{"name", string_of(*custom, "name").value_or("")},
                         {"arguments", arguments_of_custom(*custom)}};
  call.erase("custom");
  call["type"] = "function";
  call["function"] = std::move(function);
}

}  // namespace

ClientJson arguments_of_custom(ClientJson& call) {
  return {{"input", take_string(call, "input").value_or("")}};
}

bool wants_tools(const ClientJson& body) {
  const ClientJson* tools = find(body, "tools");
  if (tools != nullptr) check_tools(*tools);
  const ClientJson* choice = find(body, "tool_choice");
  return tools != nullptr && !tools->empty() && (choice == nullptr || *choice != "none");
}

std::optional<ToolUse> tool_use_of(const ClientJson& body) {
  const ClientJson* choice = find(body, "tool_choice");
  const bool parallel = bool_of(body, "parallel_tool_calls").value_or(true);
  if (!wants_tools(body)) {
    if (choice == nullptr || *choice == "none" || *choice == "auto") return std::nullopt;
    throw BadField("tool_choice", "tool_choice must be left out without tools");
  }
  if (choice == nullptr || *choice == "auto" || *choice == "required") {
    return ToolUse{.required = choice != nullptr && *choice == "required", .parallel = parallel};
  }
  const ClientJson* allowed = fields_of(*choice, "allowed_tools");
  return allowed != nullptr ? allowed_tools(*allowed, parallel) : ToolUse::of(name_of(*choice));
}

void read_arguments(ClientJson& calls, ValueBudget& budget) {
  if (!calls.is_array()) return;
  for (ClientJson& call : calls) {
    if (call.is_object()) read_custom_call(call);
    const auto function = call.is_object() ? call.find("function") : call.end();
    if (!call.is_object() || function == call.end() || !function->is_object()) continue;
    const auto arguments = function->find("arguments");
    if (arguments == function->end() || !arguments->is_string()) continue;
    auto object = json_object(arguments->get_ref<const std::string&>(), budget);
    if (object) *arguments = *std::move(object);
  }
}

}  // namespace recurve
