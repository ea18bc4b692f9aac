#pragma once
#include <optional>
#include <string_view>

#include "server/serving/tool_use.h"
#include "server/text/json/client_json.h"

namespace recurve {

// Whether a body has tools that the answer may know of: there are some, and tool_choice is not
// none. Throws BadField.
bool wants_tools(const ClientJson& body);

// What tool_choice and parallel_tool_calls say of them. Throws BadField.
std::optional<ToolUse> tool_use_of(const ClientJson& body);

// The object of JSON that a text is, within the bounds of what clients send; nothing where it is
// none. Throws BadField where the budget is spent.
std::optional<ClientJson> json_object(std::string_view text, ValueBudget& budget);

// Reads the arguments of the calls of an earlier answer as templates do: objects, where the dialect
// has JSON in a string. Others stay as they are, and are refused (chat_rules.h).
void read_arguments(ClientJson& calls, ValueBudget& budget);

}  // namespace recurve
