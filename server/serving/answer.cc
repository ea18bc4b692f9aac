#include "server/serving/answer.h"

#include <utility>

namespace recurve {

Answer::Answer(const Tokenizer& tokenizer, const ParsedRequest& parsed)
    : tokenizer_(&tokenizer),
      include_stop_(parsed.include_stop),
      decoder_(tokenizer, parsed.answer_position),
      tools_(parsed.tools) {
  if (!parsed.stop_strings.empty()) matcher_.emplace(parsed.stop_strings);
  if (tools_) calls_.emplace(*tools_->form, tools_->types.get());
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
  // A mark that is a control token has no text in the decoder.
  if (tools_ && tools_->mark == id) text += mark_token(*tools_->form);
  add_text(text, delta);
}

void Answer::finish(AnswerDelta* delta) {
  add_text(decoder_.finish(), delta);
  if (matcher_) append(matcher_->finish(), delta);
  if (calls_) calls_->finish(&delta->text);
}

void Answer::add_text(const std::string& text, AnswerDelta* delta) {
  if (!matcher_) return append(text, delta);
  if (stopped()) return;
  append(matcher_->feed(text), delta);
  if (stopped() && include_stop_) append(matcher_->matched_text(), delta);
}

void Answer::append(const std::string& text, AnswerDelta* delta) {
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
