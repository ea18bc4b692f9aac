#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/openai/fields/field_table.h"
#include "server/request/refusal.h"
#include "server/serving/server_core.h"
#include "server/serving/text_request.h"
#include "server/serving/tool_use.h"
#include "server/text/json/client_json.h"

namespace recurve {

// Lists of token ids, in any of the bodies.
inline constexpr std::string_view kIdFields[] = {"prompt", "tokens", "stop_token_ids",
                                                 "allowed_token_ids"};

// The form of the response.
struct OpenAiForm {
  bool stream = false;         // events as they come; else one object at the end
  bool usage = false;          // a stream's last event has the usage
  bool usage_each = false;     // and every other one too
  int32_t choices = 1;         // not validated
  bool tokens_as_ids = false;  // tokens with log-probabilities are named by their ids
};

// read_body() of request_body.h, for a resource of this dialect.
Refused read_openai_body(std::string text, const WorkLimits& limits, OpenAiResource resource,
                         const ModelQuery& query,
                         const std::function<void(ClientJson& body)>& read);

// The common fields of all resources: sampling, stops, priority and session, stream and n.
void read_common(ClientJson& body, TextRequest* asked, OpenAiForm* form);

// Reads the constraint of an answer from the field of the dialect that has one: response_format, or
// text.format of a response; guided_json, guided_regex, guided_choice, guided_grammar and
// structured_outputs as in vLLM; regex, ebnf and json_schema as in SGLang; and any_whitespace. The
// answer's properties have the order of the schema's. Throws BadField, also if two fields have one.
void read_constraint(const ClientJson& body, TextRequest* asked);

// The session that the body names. `session` is the header's, or empty; both must be equal if both
// are present.
void read_session(const ClientJson& body, std::string* session);

// chat_template_kwargs; null if absent. Throws BadField.
const ClientJson* template_variables(const ClientJson& body);

// reasoning_effort (reasoning.effort of a response) and enable_thinking, for the template. Throws
// BadField.
void read_effort(const ClientJson& body, Conversation* to);

// messages, tools and the template's variables, with the client's order of fields. Moves the
// messages out of the body, which has `bytes`.
Conversation conversation_of(ClientJson& body, size_t bytes);

// Whether a body has tools, and tool_choice is not none. Throws BadField.
bool wants_tools(const ClientJson& body);

// The tool_choice and parallel_tool_calls of a body with tools. Throws BadField.
std::optional<ToolUse> tool_use_of(const ClientJson& body);

// Parses the arguments of calls of an earlier answer, which the dialect has as JSON in a string,
// into objects for the template. Others stay as they are, and are refused (chat_rules.h).
void read_arguments(ClientJson& calls, ValueBudget& budget);
// A custom tool has one text as its input: templates get it as the argument "input". Moves the text
// out of the call.
ClientJson arguments_of_custom(ClientJson& call);

}  // namespace recurve
