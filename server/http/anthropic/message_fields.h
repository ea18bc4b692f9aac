#pragma once
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "server/http/request_body.h"
#include "server/serving/text_request.h"

namespace recurve {

// The resources of this dialect that read fields.
enum class MessagesResource { kMessages, kCountTokens };

// The fields of the anthropic package.
FieldTable table_of(MessagesResource resource);

// read_body() of request_body.h, for a resource of this dialect.
Refused read_messages_body(std::string text, const WorkLimits& limits, MessagesResource resource,
                           const ModelQuery& query,
                           const std::function<void(ClientJson& body)>& read);

// Takes messages, system and tools out of a body of `bytes`, as the chat template gets them from
// chat completions: results of tools are messages of the role "tool", turns of one role that follow
// each other are one, and an assistant's message at the end is continued. Throws BadField for
// content that is no text and no call.
Conversation take_conversation(ClientJson& body, size_t bytes);

// tool_choice of a body with tools; nothing: calls are text. Throws BadField.
std::optional<ToolUse> messages_tool_use(const ClientJson& body);

// The thinking of a body.
struct Thinking {
  enum class Shown { kText, kEmpty, kNot };
  std::optional<bool> wanted = {};  // absent: as the chat template does
  Shown shown = Shown::kText;       // in blocks of the message
};
// Throws BadField.
Thinking thinking_of(const ClientJson& body);
// output_config.effort, for the template; empty: absent. Throws BadField.
std::string effort_of(const ClientJson& body);

// Reads sampling, stops and the constraint of output_config. Throws BadField.
void read_answer_fields(const ClientJson& body, TextRequest* asked);

}  // namespace recurve
