#include "server/http/body_fields.h"
#include "server/http/openai/fields/request_fields.h"

namespace recurve {
namespace {

// {"type": "function", "function": {"name": ...}}, or the name next to the type.
std::string named_tool(const ClientJson& choice) {
  const ClientJson* function = choice.is_object() ? find(choice, "function") : nullptr;
  const ClientJson& holder = function != nullptr ? *function : choice;
  const bool is_function = choice.is_object() && string_of(choice, "type") == "function";
  const auto name = is_function && holder.is_object() ? string_of(holder, "name") : std::nullopt;
  if (name) return *name;
  throw BadField("tool_choice",
                 "tool_choice must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", "
                 "\"function\": {\"name\": ...}}");
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
  ToolUse use{.parallel = bool_of(body, "parallel_tool_calls").value_or(true)};
  if (!wants_tools(body)) {
    if (choice == nullptr || *choice == "none" || *choice == "auto") return std::nullopt;
    throw BadField("tool_choice", "tool_choice must be left out without tools");
  }
  if (choice == nullptr || *choice == "auto") return use;
  if (*choice == "required") {
    use.choice = ToolUse::Choice::kRequired;
  } else {
    use.choice = ToolUse::Choice::kNamed;
    use.name = named_tool(*choice);
  }
  return use;
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
