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

}  // namespace

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

bool wants_tools(const ClientJson& body) {
  const ClientJson* tools = find(body, "tools");
  if (tools != nullptr && !tools->is_array()) throw BadField("tools", "tools must be a list");
  constexpr size_t kMost = 4096;
  if (tools != nullptr && tools->size() > kMost) {
    throw BadField("tools", fmt::format("tools must be at most {}, got {}", kMost, tools->size()));
  }
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
    const auto function = call.is_object() ? call.find("function") : call.end();
    if (!call.is_object() || function == call.end() || !function->is_object()) continue;
    const auto arguments = function->find("arguments");
    if (arguments == function->end() || !arguments->is_string()) continue;
    auto object = json_object(arguments->get_ref<const std::string&>(), budget);
    if (object) *arguments = *std::move(object);
  }
}

}  // namespace recurve
