#include "server/http/openai/tool_fields.h"

#include "server/http/body_fields.h"
#include "server/text/client_json.h"

namespace recurve {
namespace {

using nlohmann::json;
using Ordered = nlohmann::ordered_json;

// {"type": "function", "function": {"name": ...}}, or the name beside the type.
std::string named_tool(const json& choice) {
  const json* function = choice.is_object() ? find(choice, "function") : nullptr;
  const json& holder = function != nullptr ? *function : choice;
  const bool is_function = choice.is_object() && string_of(choice, "type") == "function";
  const auto name = is_function && holder.is_object() ? string_of(holder, "name") : std::nullopt;
  if (name) return *name;
  throw BadField("tool_choice",
                 "tool_choice must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", "
                 "\"function\": {\"name\": ...}}");
}

}  // namespace

bool is_json_object(const std::string& text) {
  try {
    parse_object(text);
    return true;
  } catch (const BadField&) {
    return false;
  }
}

bool wants_tools(const json& body) {
  const json* tools = find(body, "tools");
  if (tools != nullptr && !tools->is_array()) throw BadField("tools", "tools must be a list");
  constexpr size_t kMost = 4096;
  if (tools != nullptr && tools->size() > kMost) {
    throw BadField("tools", fmt::format("tools must be at most {}, got {}", kMost, tools->size()));
  }
  const json* choice = find(body, "tool_choice");
  return tools != nullptr && !tools->empty() && (choice == nullptr || *choice != "none");
}

std::optional<ToolUse> tool_use_of(const json& body) {
  const json* choice = find(body, "tool_choice");
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

Ordered with_read_arguments(const Ordered& calls) {
  Ordered read = calls;
  if (!read.is_array()) return read;
  for (Ordered& call : read) {
    const auto function = call.is_object() ? call.find("function") : call.end();
    if (!call.is_object() || function == call.end() || !function->is_object()) continue;
    const auto arguments = function->find("arguments");
    if (arguments == function->end() || !arguments->is_string()) continue;
    const std::string text = arguments->get<std::string>();
    if (is_json_object(text)) *arguments = read_in_order(text);
  }
  return read;
}

std::string dump_ordered(const Ordered& value) {
  return value.dump(-1, ' ', false, Ordered::error_handler_t::replace);
}

}  // namespace recurve
