#include "server/http/openai/choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/http/body_fields.h"

namespace recurve {

using nlohmann::json;

namespace {

const char* finish_reason_of(const ChoiceEnd& end) {
  const bool called = end.reason != EndReason::kLength && end.tool_calls > 0 && !end.cut_call;
  return called ? "tool_calls" : row_of(end.reason).finish_reason;
}

}  // namespace

void add_calls(const std::vector<ToolCallPart>& parts, std::vector<ToolCallPart>* calls) {
  for (const ToolCallPart& part : parts) {
    if (part.index >= static_cast<int32_t>(calls->size())) {
      calls->push_back(part);
    } else {
      calls->back().arguments += part.arguments;
    }
  }
}

// A number out of range is refused before there is an answer.
void Choices::allot(size_t requests) {
  form_.choices = std::clamp(form_.choices, 1, std::max(model_->text.max_choices, 1));
  choices_.resize(first_choice(requests));
  accepted_.resize(requests);
  generated_.resize(requests);
  thought_.resize(requests);
  saved_.resize(requests);
  begun_.resize(requests);
}

Refused Choices::apply_state(std::vector<TextRequest>* asked) {
  for (TextRequest& one : *asked) one.model = model_;
  return state_.apply(asked);
}

std::string Choices::take(size_t index, const AnswerEvent& event) {
  return std::visit([&](const auto& of) { return write(index, of); }, event);
}

json Choices::object() const {
  return {{"id", id_prefix() + id_},
          {"object", object_name()},
          {"created", static_cast<int64_t>(created_)},
          {"model", model_.name()},
          {"system_fingerprint", model_->info.system_fingerprint}};
}

// Tokens of a session's state, or of a shared prefix, count as cached.
json Choices::usage() const {
  int64_t prompt = 0, cached = 0, generated = 0, thought = 0;
  for (size_t r = 0; r < accepted_.size(); ++r) {
    cached += accepted_[r].session_position + saved_[r];
    prompt += accepted_[r].session_position + accepted_[r].prompt_tokens;
    generated += generated_[r];
    thought += thought_[r];
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", generated},
          {"total_tokens", prompt + generated},
          {"prompt_tokens_details", {{"cached_tokens", cached}}},
          {"completion_tokens_details", {{"reasoning_tokens", thought}}}};
}

// The fields of object(), which follow "choices" in each event.
const std::string& Choices::constant_fields() const {
  if (constant_fields_.empty()) {
    constant_fields_ = dump(object());
    constant_fields_.front() = ',';
    constant_fields_.pop_back();
  }
  return constant_fields_;
}

std::string Choices::event(const json& choices) const {
  const std::string end = form_.usage_each ? fmt::format(",\"usage\":{}", dump(usage())) : "";
  return fmt::format("data: {{\"choices\":{}{}{}}}\n\n", dump(choices), constant_fields(), end);
}

std::string Choices::write(size_t index, const RequestAccepted& accepted) {
  accepted_[index] = accepted;
  return {};
}

std::string Choices::write(size_t index, const PromptScored& scored) {
  add_scored(index, scored.tokens);
  return {};
}

std::string Choices::begin_once(size_t index) {
  if (begun_[index]) return {};
  begun_[index] = true;
  return begin_answers(index);
}

std::string Choices::write(size_t index, const AnswerDelta& delta) {
  std::string events = begin_once(index);
  generated_[index] += static_cast<int64_t>(delta.tokens.size());
  const size_t at = first_choice(index) + static_cast<size_t>(delta.choice);
  Choice& to = choices_[at];
  json fresh = nullptr;
  json& logprobs = form_.stream ? fresh : to.logprobs;
  for (size_t t = 0; delta.logprobs && t < delta.tokens.size(); ++t) {
    add_logprobs(delta.tokens[t], to.answer_offset + delta.offsets[t], &logprobs);
  }
  if (!form_.stream) {
    to.text += delta.text;
    to.reasoning += delta.reasoning;
    add_calls(delta.calls, &to.calls);
    return {};
  }
  // Of the mark of a call, and where text is held back, there is nothing to show yet.
  const bool shows = !delta.text.empty() || !delta.reasoning.empty() || !delta.calls.empty();
  if (!shows && fresh.is_null() && !form_.usage_each) return events;
  const Part fresh_part{.choice = at,
                        .text = delta.text,
                        .reasoning = delta.reasoning,
                        .calls = delta.calls,
                        .first = !std::exchange(to.begun, true)};
  return events + event(json::array({part(fresh_part, std::move(fresh))}));
}

std::string Choices::write(size_t index, const AnswerEnd& end) {
  std::string events = begin_once(index);
  accepted_[index].prompt_tokens = end.usage.prompt_tokens;
  saved_[index] = end.usage.prefix.tokens;
  generated_[index] = end.usage.generated_tokens;
  for (size_t c = 0; c < end.choices.size(); ++c) {
    const size_t at = first_choice(index) + c;
    Choice& to = choices_[at];
    thought_[index] += end.choices[c].reasoning_tokens;
    to.finish_reason = finish_reason_of(end.choices[c]);
    if (!form_.stream) continue;
    const AnswerDelta nothing;
    const Part last{.choice = at,
                    .text = nothing.text,
                    .reasoning = nothing.reasoning,
                    .calls = nothing.calls,
                    .finish_reason = to.finish_reason,
                    .first = !std::exchange(to.begun, true)};
    events += event(json::array({part(last, nullptr)}));
  }
  return events;
}

std::string Choices::stream_end() {
  std::string events;
  if (form_.usage) {
    events = fmt::format("data: {{\"choices\":[]{},\"usage\":{}}}\n\n", constant_fields(),
                         dump(usage()));
  }
  if (!state_.taken().empty()) {
    events += fmt::format("data: {{\"choices\":[]{},\"state\":\"{}\"}}\n\n", constant_fields(),
                          state_.taken());
  }
  return events + "data: [DONE]\n\n";
}

std::string Choices::broken(const Refusal& refusal) {
  return fmt::format("data: {}\n\ndata: [DONE]\n\n", dump(error_of(refusal)));
}

std::string Choices::whole() {
  json all = object();
  all["choices"] = json::array();
  for (size_t c = 0; c < choices_.size(); ++c) {
    Choice& of = choices_[c];
    const Part one{.choice = c,
                   .text = of.text,
                   .reasoning = of.reasoning,
                   .calls = of.calls,
                   .finish_reason = of.finish_reason};
    all["choices"].push_back(part(one, std::move(of.logprobs)));
  }
  all["usage"] = usage();
  if (!state_.taken().empty()) all["state"] = state_.taken();
  return dump(all);
}

}  // namespace recurve
