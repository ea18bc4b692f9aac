#pragma once
#include <string>
#include <vector>

#include "server/text/chat/chat_input.h"
#include "server/text/json/client_json.h"

namespace recurve {

// What a request for a response says, as messages for the chat template, taken out of its body,
// which has had `bytes`. Throws BadField for what is neither text nor a call of a function.
std::vector<ChatMessage> take_messages_of_input(ClientJson& body, size_t bytes);

// The functions of `tools`, as chat completions have them; empty: none.
std::string tools_of_response(const ClientJson& body);

}  // namespace recurve
