#include "server/http/openai_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "server/http/body_fields.h"
#include "server/text/utf8.h"

namespace recurve {
namespace {

using nlohmann::json;

std::string sse(const json& value) { return "data: " + dump(value) + "\n\n"; }

// JSON has no infinity; this is what the dialect's servers say instead.
double finite(float logprob) { return std::isfinite(logprob) ? logprob : -9999.0; }

size_t characters(std::string_view utf8) {
  return static_cast<size_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

json no_logprobs(bool chat) {
  if (chat) return {{"content", json::array()}};
  return {{"tokens", json::array()},
          {"token_logprobs", json::array()},
          {"top_logprobs", json::array()},
          {"text_offset", json::array()}};
}

// Appends each list of `from` to that of `to`.
void append(const json& from, json* to) {
  if (from.is_null()) return;
  if (to->is_null()) {
    *to = from;
    return;
  }
  for (const auto& [name, list] : from.items()) {
    for (const json& one : list) (*to)[name].push_back(one);
  }
}

}  // namespace

std::string OpenAiAnswer::take(const AnswerEvent& event) {
  return std::visit([this](const auto& of) { return write(of); }, event);
}

OpenAiAnswer::Choice& OpenAiAnswer::choice(int32_t index) {
  const auto at = static_cast<size_t>(index);
  if (choices_.size() <= at) choices_.resize(at + 1);
  return choices_[at];
}

json OpenAiAnswer::object() const {
  const char* chat = form_.stream ? "chat.completion.chunk" : "chat.completion";
  return {{"id", (form_.chat ? "chatcmpl-" : "cmpl-") + accepted_.request_id},
          {"object", form_.chat ? chat : "text_completion"},
          {"created", static_cast<int64_t>(created_)},
          {"model", model_}};
}

// What a session had absorbed before counts as cached.
json OpenAiAnswer::usage() const {
  const int64_t prompt = accepted_.session_position + accepted_.prompt_tokens;
  return {{"prompt_tokens", prompt},
          {"completion_tokens", generated_},
          {"total_tokens", prompt + generated_},
          {"prompt_tokens_details", {{"cached_tokens", accepted_.session_position}}}};
}

std::string OpenAiAnswer::event(json choices) const {
  json event = object();
  event["choices"] = std::move(choices);
  if (form_.usage_each) event["usage"] = usage();
  return sse(event);
}

json OpenAiAnswer::part(int32_t index, const std::string& text, json logprobs,
                        const char* finish_reason, bool first) const {
  json part = {{"index", index}, {"logprobs", std::move(logprobs)}, {"finish_reason", nullptr}};
  if (finish_reason != nullptr) part["finish_reason"] = finish_reason;
  if (!form_.chat) {
    part["text"] = text;
    return part;
  }
  json message = json::object();
  if (first || !form_.stream) message["role"] = "assistant";
  if (first || finish_reason == nullptr || !form_.stream) message["content"] = text;
  part[form_.stream ? "delta" : "message"] = std::move(message);
  return part;
}

std::string OpenAiAnswer::write(const RequestAccepted& accepted) {
  accepted_ = accepted;
  return {};
}

std::string OpenAiAnswer::write(const AnswerDelta& delta) {
  generated_ += static_cast<int64_t>(delta.tokens.size());
  const bool first = static_cast<size_t>(delta.choice) >= choices_.size() ||
                     choices_[static_cast<size_t>(delta.choice)].offset == 0;
  Choice& to = choice(delta.choice);
  json logprobs = delta.logprobs ? no_logprobs(form_.chat) : json(nullptr);
  for (const SampledToken& token : delta.tokens) {
    if (delta.logprobs) add_logprobs(token, to, &logprobs);
    to.offset += std::max<size_t>(characters(tokenizer_.token_bytes(token.id)), 1);
  }
  if (form_.stream) {
    return event(
        json::array({part(delta.choice, delta.text, std::move(logprobs), nullptr, first)}));
  }
  to.text += delta.text;
  append(logprobs, &to.logprobs);
  return {};
}

std::string OpenAiAnswer::write(const AnswerEnd& end) {
  accepted_.prompt_tokens = end.usage.prompt_tokens;
  generated_ = end.usage.generated_tokens;
  std::string events;
  for (size_t c = 0; c < end.choices.size(); ++c) {
    const auto index = static_cast<int32_t>(c);
    const bool length = end.choices[c].why == Finish::kLength;
    Choice& to = choice(index);
    to.finish_reason = length ? "length" : "stop";
    if (form_.stream) events += event(json::array({part(index, "", nullptr, to.finish_reason)}));
  }
  if (!form_.stream) return {};
  if (form_.usage) {
    json last = object();
    last["choices"] = json::array();
    last["usage"] = usage();
    events += sse(last);
  }
  return events + "data: [DONE]\n\n";
}

std::string OpenAiAnswer::broken(const Refusal& refusal) { return sse(error_of(refusal)); }

std::string OpenAiAnswer::whole() const {
  json all = object();
  all["choices"] = json::array();
  for (size_t c = 0; c < choices_.size(); ++c) {
    const Choice& of = choices_[c];
    all["choices"].push_back(part(static_cast<int32_t>(c), of.text, of.logprobs, of.finish_reason));
  }
  all["usage"] = usage();
  return dump(all);
}

// A token's text; one that is part of a character only as its bytes.
std::string OpenAiAnswer::name_of(int32_t id) const {
  const std::string_view bytes = tokenizer_.token_bytes(id);
  if (is_valid_utf8(bytes)) return std::string(bytes);
  std::string name = "bytes:";
  for (const char byte : bytes) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return name;
}

json OpenAiAnswer::chat_token(int32_t id, float logprob) const {
  json bytes = json::array();
  for (const char byte : tokenizer_.token_bytes(id)) {
    bytes.push_back(static_cast<unsigned char>(byte));
  }
  return {{"token", name_of(id)}, {"logprob", finite(logprob)}, {"bytes", std::move(bytes)}};
}

void OpenAiAnswer::add_logprobs(const SampledToken& token, Choice& choice, json* to) const {
  if (form_.chat) {
    json one = chat_token(token.id, token.logprob);
    one["top_logprobs"] = json::array();
    for (const TokenLogprob& top : token.top) {
      one["top_logprobs"].push_back(chat_token(top.id, top.logprob));
    }
    (*to)["content"].push_back(std::move(one));
    return;
  }
  json top = json::object();
  for (const TokenLogprob& candidate : token.top) {
    top[name_of(candidate.id)] = finite(candidate.logprob);
  }
  (*to)["tokens"].push_back(name_of(token.id));
  (*to)["token_logprobs"].push_back(finite(token.logprob));
  (*to)["top_logprobs"].push_back(std::move(top));
  (*to)["text_offset"].push_back(choice.offset);
}

json error_object(int status, const std::string& message, const std::string& field) {
  const char* type = "server_error";
  if (status >= 400 && status < 500) type = "invalid_request_error";
  if (status == 429) type = "rate_limit_error";
  json error = {{"message", message}, {"type", type}, {"param", nullptr}, {"code", status}};
  if (!field.empty()) error["param"] = field;
  return {{"error", std::move(error)}};
}

json error_of(const Refusal& refusal) {
  return error_object(http_status(refusal.code), refusal.message, refusal.field);
}

int http_status(Refusal::Code code) {
  switch (code) {
    case Refusal::Code::kInvalid:
      return 400;
    case Refusal::Code::kNotFound:
      return 404;
    case Refusal::Code::kExists:
    case Refusal::Code::kBusy:
      return 409;
    case Refusal::Code::kExhausted:
      return 429;
    case Refusal::Code::kCancelled:
      return 499;
    case Refusal::Code::kUnsupported:
      return 501;
    case Refusal::Code::kUnavailable:
      return 503;
    case Refusal::Code::kDeadline:
      return 504;
    case Refusal::Code::kInternal:
      break;
  }
  return 500;
}

}  // namespace recurve
