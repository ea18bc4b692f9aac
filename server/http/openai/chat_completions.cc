#include <utility>

#include "server/http/body_fields.h"
#include "server/http/openai/completions.h"
#include "server/http/openai/fields/request_fields.h"
#include "server/http/openai/logprobs.h"

namespace recurve {

using nlohmann::json;

Refused ChatCompletions::read(std::string text, const WorkLimits& limits,
                              std::vector<TextRequest>* asked) {
  const size_t bytes = text.size();
  const auto read = [&](ClientJson& body) {
    TextRequest& to = asked->emplace_back(TextRequest{.session = session_});
    read_common(body, &to, &form_);
    state_.read(body);
    read_constraint(body, &to);
    Conversation& conversation = to.prompt.emplace<Conversation>(conversation_of(body, bytes));
    read_effort(body, &conversation);
    to.tools = tool_use_of(body);
    to.max_tokens = int32_of(body, "max_completion_tokens");
    to.names.prompt = "messages";
    to.is_chat = true;
    to.names.logprobs = "top_logprobs";
    if (to.max_tokens) to.names.max_tokens = "max_completion_tokens";
    if (!to.max_tokens) to.max_tokens = int32_of(body, "max_tokens");
    const auto top = int32_of(body, "top_logprobs");
    const bool logprobs = bool_of(body, "logprobs").value_or(false);
    if (top && *top != 0 && !logprobs) {
      throw BadField("top_logprobs", "top_logprobs needs logprobs to be true");
    }
    if (logprobs) to.logprobs = top.value_or(0);
    allot(1);
  };
  Refused refused =
      read_openai_body(std::move(text), limits, OpenAiResource::kChatCompletions, query(), read);
  return refused ? refused : apply_state(asked);
}

json ChatCompletions::part(const Part& of, json logprobs) const {
  json part = {{"index", of.choice}, {"logprobs", std::move(logprobs)}, {"finish_reason", nullptr}};
  if (of.finish_reason != nullptr) part["finish_reason"] = of.finish_reason;
  json message = json::object();
  if (of.first) message["role"] = "assistant";
  const bool calls_alone = of.text.empty() && !of.calls.empty();
  const bool thoughts_alone = of.text.empty() && !of.reasoning.empty() && form_.stream;
  if (of.first || (of.finish_reason == nullptr && !calls_alone && !thoughts_alone)) {
    message["content"] = of.text;
  }
  if (of.first && calls_alone) message["content"] = nullptr;
  if (!of.reasoning.empty()) message["reasoning_content"] = of.reasoning;
  if (!of.calls.empty()) message["tool_calls"] = calls_of(of.calls);
  if (!form_.stream) message["refusal"] = nullptr;
  part[form_.stream ? "delta" : "message"] = std::move(message);
  return part;
}

// In a stream a call has its index, and its id and name with its first part alone.
json ChatCompletions::calls_of(const std::vector<ToolCallPart>& calls) const {
  json list = json::array();
  for (const ToolCallPart& call : calls) {
    json one = {{"function", {{"arguments", call.arguments}}}};
    if (form_.stream) one["index"] = call.index;
    if (!call.name.empty()) {
      one["id"] = call.id;
      one["type"] = "function";
      one["function"]["name"] = call.name;
    }
    list.push_back(std::move(one));
  }
  return list;
}

void ChatCompletions::add_logprobs(const SampledToken& token, size_t, json* to) const {
  if (to->is_null()) *to = {{"content", json::array()}, {"refusal", nullptr}};
  (*to)["content"].push_back(chat_logprob(token, names()));
}

}  // namespace recurve
