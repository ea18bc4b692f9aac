#include "server/request/answer.h"

#include <utility>

namespace recurve {

Answer::Answer(const Tokenizer& tokenizer, const ParsedRequest& parsed)
    : include_stop_(parsed.include_stop), decoder_(tokenizer, parsed.answer_position) {
  if (!parsed.stop_strings.empty()) matcher_.emplace(parsed.stop_strings);
}

void Answer::add(SampledToken token, bool ends, AnswerDelta* delta) {
  if (stopped()) return;
  ++tokens_;
  const int32_t id = token.id;
  delta->tokens.push_back(std::move(token));
  if (!ends || include_stop_) add_text(decoder_.push(id), delta);
}

void Answer::finish(AnswerDelta* delta) {
  add_text(decoder_.finish(), delta);
  if (matcher_) delta->text.append(matcher_->finish());
}

void Answer::add_text(const std::string& text, AnswerDelta* delta) {
  if (!matcher_) {
    delta->text.append(text);
    return;
  }
  if (stopped()) return;
  delta->text.append(matcher_->feed(text));
  if (stopped() && include_stop_) delta->text.append(matcher_->matched_text());
}

}  // namespace recurve
