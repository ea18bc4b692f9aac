#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "server/request/token_stream.h"
#include "server/sampling/sampled_token.h"
#include "server/text/chat/tool_call_parser.h"

namespace recurve {

// What becomes of a request, as every door gets it and says it in its own way. The bytes of a token
// are its tokenizer's to say.

// What was understood, before anything is computed: first, once.
struct RequestAccepted {
  std::string request_id = {};
  int64_t prompt_tokens = 0;     // to be absorbed; 0 of a text that is still being sent
  int64_t session_position = 0;  // tokens the session had absorbed before; 0 without one
  uint64_t seed = 0;             // the one used
};

// How likely the next tokens of the prompt were, where that was asked for; in order.
struct PromptScored {
  std::vector<SampledToken> tokens = {};
};

// The next part of one choice's answer.
struct AnswerDelta {
  int32_t choice = 0;
  // Whole characters. It lags behind the tokens where a character is not complete, or where a stop
  // string may have begun.
  std::string text = {};
  std::vector<ToolCallPart> calls = {};   // of tools, none of which is in the text
  std::vector<SampledToken> tokens = {};  // since the last delta of this choice
  bool logprobs = false;                  // the tokens have log-probabilities, as was asked for
  bool empty() const { return text.empty() && calls.empty() && tokens.empty(); }
};

// How a choice ended.
struct ChoiceEnd {
  EndReason reason = EndReason::kLength;  // kLength, kEos, kStopId or kStopString
  std::string stop_string = {};           // with kStopString
  int32_t stop_id = -1;                   // with kEos and kStopId
  int32_t tool_calls = 0;                 // that have all of their arguments
  bool cut_call = false;                  // the last call has not
  int64_t generated_tokens = 0;           // those behind a stop string not counted
  double decode_seconds = 0;              // from its first token to its end
};

// Last, once, where the answer is whole.
struct AnswerEnd {
  std::vector<ChoiceEnd> choices = {};
  StreamEnd usage = {};  // of all choices
};

using AnswerEvent = std::variant<RequestAccepted, PromptScored, AnswerDelta, AnswerEnd>;

// How far the scoring of a text has come.
struct ScoreProgress {
  int64_t scored_tokens = 0;
  double sum_logprob = 0;                 // of those, natural logarithm
  std::vector<SampledToken> tokens = {};  // since the last event, where they were asked for
};

// Last, once.
struct ScoreEnd {
  int64_t scored_tokens = 0;
  double sum_logprob = 0;
  int64_t text_bytes = 0;  // of the text, or of the ids' text
  StreamEnd usage = {};
};

using ScoreEvent = std::variant<RequestAccepted, ScoreProgress, ScoreEnd>;

// About what a token adds to a message, in bytes. Events are cut near kEventBytes, so that a client
// which was slow for a while is not sent one that it will not take.
inline constexpr size_t kEventBytes = 256 << 10;
inline size_t size_of(const SampledToken& token, bool logprobs) {
  constexpr size_t kPlain = 16, kWithLogprob = 40;
  return kPlain + (logprobs ? kWithLogprob * (1 + token.top.size()) : 0);
}

}  // namespace recurve
