#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "server/serving/events.h"
#include "server/serving/validate.h"
#include "server/text/chat/reasoning.h"
#include "server/text/chat/tool_call_parser.h"
#include "server/text/stop_matcher.h"
#include "server/text/stream_decoder.h"
#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// Converts the tokens of one choice to text. One thread at a time.
class Answer {
 public:
  // The tokenizer outlives the answer.
  Answer(const Tokenizer& tokenizer, const ParsedRequest& parsed);

  // Appends a token to the delta, and the text that is certain now. A token after a matched stop
  // string is ignored. `ends`: this token is the end-of-sequence or stop id.
  void add(SampledToken token, bool ends, AnswerDelta* delta);
  // The answer continues a text, wherever the prompt begins. Before the first token.
  void continue_text();
  // Appends the text that was held back. Last.
  void finish(AnswerDelta* delta);

  bool stopped() const { return matcher_ && matcher_->matched(); }
  const std::string& stop_string() const { return matcher_->matched_text(); }  // if stopped()
  // Added so far, without ignored ones.
  int64_t tokens() const { return tokens_; }
  int64_t reasoning_tokens() const { return reasoning_tokens_; }
  // Complete calls of tools.
  int32_t tool_calls() const { return calls_ ? calls_->whole_calls() : 0; }
  // The last call is incomplete.
  bool in_call() const { return calls_ && calls_->cut(); }

 private:
  void add_text(const std::string& text, AnswerDelta* delta);
  std::string control_text(int32_t id) const;
  void append(const std::string& text, AnswerDelta* delta);
  void append_answer(const std::string& text, AnswerDelta* delta);

  const Tokenizer* tokenizer_;
  const bool include_stop_;
  StreamDecoder decoder_;
  std::optional<StopMatcher> matcher_;  // if there are stop strings
  const std::optional<ToolReading> tools_;
  std::optional<ToolCallParser> calls_;  // if tools may be called
  const std::optional<ReasoningReading> reasoning_;
  std::optional<ReasoningParser> thoughts_;  // if there may be reasoning
  int64_t tokens_ = 0, reasoning_tokens_ = 0;
};

}  // namespace recurve
