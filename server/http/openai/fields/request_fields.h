#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "server/http/openai/fields/field_table.h"
#include "server/request/refusal.h"
#include "server/serving/server_core.h"
#include "server/serving/text_request.h"
#include "server/text/json/client_json.h"

namespace recurve {

// Lists of token ids, in any of the bodies.
inline constexpr std::string_view kIdFields[] = {"prompt", "tokens", "stop_token_ids",
                                                 "allowed_token_ids"};

// The form of the response.
struct OpenAiForm {
  bool stream = false;      // events as they come; else one object at the end
  bool usage = false;       // a stream's last event has the usage
  bool usage_each = false;  // and every other one too
  int32_t choices = 1;      // as asked for; nothing has checked it
};

// Reads a body as `read` does, which may throw BadField: an object with the model that is served,
// or none, and without the fields that are refused. Its text is freed before, and `read` may take
// values out of the object.
Refused read_body(std::string text, const WorkLimits& limits, Resource resource,
                  const ServedModel& model, const std::function<void(ClientJson& body)>& read);

// What all resources say alike: sampling, stops, priority and session, stream and n.
void read_common(ClientJson& body, TextRequest* asked, OpenAiForm* form);

// Reads the constraint of an answer from the field of the dialect that has one: response_format, or
// text.format of a response; guided_json, guided_regex, guided_choice, guided_grammar and
// structured_outputs as in vLLM; regex, ebnf and json_schema as in SGLang. The answer's properties
// have the order of the schema's. Throws BadField, also if two fields have one.
void read_constraint(const ClientJson& body, TextRequest* asked);

// The session that the body names, which must be the one of the header where both name one:
// `session` is the header's, or empty.
void read_session(const ClientJson& body, std::string* session);

// chat_template_kwargs; null where there are none. Throws BadField.
const ClientJson* template_variables(const ClientJson& body);

// messages, tools and how the template is to write them, which sees the fields in their order. The
// body has had `bytes`; the messages are taken out of it.
Conversation conversation_of(ClientJson& body, size_t bytes);

// A list of at most so many messages, or items: see most_messages().
void check_messages(const ClientJson& list, const char* field, size_t bytes);

}  // namespace recurve
