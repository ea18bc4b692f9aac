#pragma once
#include <optional>
#include <string_view>

#include "server/serving/tool_use.h"
#include "server/text/json/client_json.h"

namespace recurve {

// Whether a body has tools, and tool_choice is not none. Throws BadField.
bool wants_tools(const ClientJson& body);

// The tool_choice and parallel_tool_calls of a body with tools. Throws BadField.
std::optional<ToolUse> tool_use_of(const ClientJson& body);

// Parses a JSON object within the limits of a body; nothing if the text is none. Throws BadField if
// the budget is spent.
std::optional<ClientJson> json_object(std::string_view text, ValueBudget& budget);

// Parses the arguments of calls of an earlier answer, which the dialect has as JSON in a string,
// into objects for the template. Others stay as they are, and are refused (chat_rules.h).
void read_arguments(ClientJson& calls, ValueBudget& budget);

}  // namespace recurve
