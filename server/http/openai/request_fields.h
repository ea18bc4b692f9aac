#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "server/http/openai/field_table.h"
#include "server/request/refusal.h"
#include "server/request/serving.h"
#include "server/request/text_request.h"

namespace recurve {

// How an answer is to be written.
struct OpenAiForm {
  bool stream = false;      // events as they come; else one object at the end
  bool usage = false;       // a stream's last event has the usage
  bool usage_each = false;  // and every other one too
  int32_t choices = 1;      // as asked for; nothing has checked it
};

// Reads a body as `read` does, which may throw BadField: an object with the model that is served,
// or none, and without the fields that are refused.
Refused read_body(std::string_view text, const WorkLimits& limits, Resource resource,
                  const Serving& serving,
                  const std::function<void(const nlohmann::json& body)>& read);

// What all resources say alike: sampling, stops, priority and session, stream and n.
void read_common(const nlohmann::json& body, TextRequest* asked, OpenAiForm* form);

// The session that the body names, which must be the one of the header where both name one:
// `session` is the header's, or empty.
void read_session(const nlohmann::json& body, std::string* session);

// chat_template_kwargs; null where there are none. Throws BadField.
const nlohmann::json* template_variables(const nlohmann::json& body);

// messages, tools and how the template is to write them. `text` is the body as it came: a template
// sees the fields in their order.
Conversation conversation_of(const nlohmann::json& body, std::string_view text);

}  // namespace recurve
