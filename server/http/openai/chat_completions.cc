#include "server/http/openai/chat_completions.h"

#include <utility>

#include "server/http/body_fields.h"
#include "server/http/openai/constraint_fields.h"
#include "server/http/openai/logprobs.h"

namespace recurve {

using nlohmann::json;

Refused ChatCompletions::read(std::string_view text, const WorkLimits& limits,
                              std::vector<TextRequest>* asked) {
  return read_body(text, limits, Resource::kChatCompletions, serving_, [&](const json& body) {
    TextRequest& to = asked->emplace_back(TextRequest{.session = session_});
    read_common(body, &to, &form_);
    to.constraint = constraint_of(body, text);
    to.prompt = conversation_of(body);
    to.max_tokens = int32_of(body, "max_completion_tokens");
    if (!to.max_tokens) to.max_tokens = int32_of(body, "max_tokens");
    const auto top = int32_of(body, "top_logprobs");
    const bool logprobs = bool_of(body, "logprobs").value_or(false);
    if (top && *top != 0 && !logprobs) {
      throw BadField("top_logprobs", "top_logprobs needs logprobs to be true");
    }
    if (logprobs) to.logprobs = top.value_or(0);
    allot(1);
  });
}

json ChatCompletions::part(size_t choice, const std::string& text, json logprobs,
                           const char* finish_reason, bool first) const {
  json part = {{"index", choice}, {"logprobs", std::move(logprobs)}, {"finish_reason", nullptr}};
  if (finish_reason != nullptr) part["finish_reason"] = finish_reason;
  json message = json::object();
  if (first) message["role"] = "assistant";
  if (first || finish_reason == nullptr) message["content"] = text;
  if (!form_.stream) message["refusal"] = nullptr;
  part[form_.stream ? "delta" : "message"] = std::move(message);
  return part;
}

void ChatCompletions::add_logprobs(const SampledToken& token, const Choice&, json* to) const {
  if (to->is_null()) *to = {{"content", json::array()}, {"refusal", nullptr}};
  (*to)["content"].push_back(chat_logprob(token, tokenizer()));
}

}  // namespace recurve
