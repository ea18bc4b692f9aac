#include "server/serving/answer.h"

#include <utility>

namespace recurve {

Answer::Answer(const Tokenizer& tokenizer, const ParsedRequest& parsed)
    : tokenizer_(&tokenizer),
      include_stop_(parsed.include_stop),
      decoder_(tokenizer, parsed.answer_position),
      tools_(parsed.tools),
      reasoning_(parsed.reasoning) {
  if (!parsed.stop_strings.empty()) matcher_.emplace(parsed.stop_strings);
  if (reasoning_) thoughts_.emplace(*reasoning_->rules.form, reasoning_->start);
  if (tools_) calls_.emplace(*tools_->form, tools_->types.get(), tools_->exclusive);
}

void Answer::continue_text() { decoder_ = StreamDecoder(*tokenizer_, TextPosition::kContinued); }

void Answer::add(SampledToken token, bool ends, AnswerDelta* delta) {
  if (stopped()) return;
  ++tokens_;
  const int32_t id = token.id;
  delta->tokens.push_back(std::move(token));
  if (ends && !include_stop_) {
    delta->offsets.push_back(decoder_.characters());
    return;
  }
  std::string text = decoder_.push(id);
  delta->offsets.push_back(decoder_.offset());
  text += control_text(id);
  const bool within = thoughts_ && thoughts_->inside();
  add_text(text, delta);
  if (within || (thoughts_ && thoughts_->inside())) ++reasoning_tokens_;
}

// Marks that are control tokens have no text in the decoder.
std::string Answer::control_text(int32_t id) const {
  if (thoughts_ && thoughts_->may_open() && reasoning_->rules.open == id) {
    return std::string(reasoning_->rules.form->open);
  }
  if (thoughts_ && thoughts_->inside()) {
    return reasoning_->rules.close == id ? std::string(reasoning_->rules.form->close) : "";
  }
  return tools_ && tools_->mark == id ? std::string(mark_token(*tools_->form)) : "";
}

void Answer::finish(AnswerDelta* delta) {
  add_text(decoder_.finish(), delta);
  if (matcher_) append(matcher_->finish(), delta);
  if (thoughts_) {
    std::string rest;
    thoughts_->finish(&delta->reasoning, &rest);
    append_answer(rest, delta);
  }
  if (calls_) calls_->finish(&delta->text);
}

void Answer::add_text(const std::string& text, AnswerDelta* delta) {
  if (!matcher_) return append(text, delta);
  if (stopped()) return;
  append(matcher_->feed(text), delta);
  if (stopped() && include_stop_) append(matcher_->matched_text(), delta);
}

void Answer::append(const std::string& text, AnswerDelta* delta) {
  if (!thoughts_) return append_answer(text, delta);
  std::string answer;
  thoughts_->feed(text, &delta->reasoning, &answer);
  append_answer(answer, delta);
}

void Answer::append_answer(const std::string& text, AnswerDelta* delta) {
  if (!calls_) {
    delta->text += text;
    return;
  }
  calls_->feed(text, &delta->text, &delta->calls);
  for (ToolCallPart& part : delta->calls) {
    if (!part.name.empty() && part.id.empty()) part.id = make_call_id(*tools_->form);
  }
}

}  // namespace recurve
