#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "server/request/tool_use.h"

namespace recurve {

// Whether a body has tools that the answer may know of: there are some, and tool_choice is not
// none. Throws BadField.
bool wants_tools(const nlohmann::json& body);

// What tool_choice and parallel_tool_calls say of them. Throws BadField.
std::optional<ToolUse> tool_use_of(const nlohmann::json& body);

// Whether it is JSON within the bounds of what clients send, and an object.
bool is_json_object(const std::string& text);

// The calls of an earlier answer with arguments as templates read them: objects, where the dialect
// has JSON in a string. Others stay as they are, and are refused (chat_rules.h).
nlohmann::ordered_json with_read_arguments(const nlohmann::ordered_json& calls);

// As JSON; bytes that are not UTF-8 become U+FFFD.
std::string dump_ordered(const nlohmann::ordered_json& value);

}  // namespace recurve
