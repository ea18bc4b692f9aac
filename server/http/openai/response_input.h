#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/text/chat_input.h"

namespace recurve {

// What a request for a response says, as messages for the chat template. Throws BadField for what
// is neither text nor a call of a function.
std::vector<ChatMessage> messages_of_input(const nlohmann::json& body);

// The functions of `tools`, as chat completions have them; empty: none. `text` is the body as it
// came, whose order they keep.
std::string tools_of_response(const nlohmann::json& body, std::string_view text);

}  // namespace recurve
