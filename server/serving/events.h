#pragma once
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "server/request/token_stream.h"
#include "server/sampling/sampled_token.h"
#include "server/text/chat/tool_call_parser.h"

namespace recurve {

// The events of a request, which each frontend writes in its protocol.

// The request was accepted; nothing is computed yet. First, once.
struct RequestAccepted {
  std::string request_id = {};
  int64_t prompt_tokens = 0;     // to compute; 0 for a text that is still being sent
  int64_t session_position = 0;  // tokens of the session before; 0 without one
  uint64_t seed = 0;             // the one used
};

// Log-probabilities of the next tokens of the prompt, if requested; in order.
struct PromptScored {
  std::vector<SampledToken> tokens = {};
};

// Ids of the prompt that are absorbed so far, if requested.
struct PromptProgress {
  int64_t absorbed_tokens = 0;
};

// The next part of one choice's answer.
struct AnswerDelta {
  int32_t choice = 0;
  // Complete characters. Text lags behind tokens while a character is incomplete or a stop string
  // may have begun.
  std::string text = {};
  std::string reasoning = {};             // before the text; not in it
  std::vector<ToolCallPart> calls = {};   // of tools; not in the text
  std::vector<SampledToken> tokens = {};  // since the last delta of this choice
  bool logprobs = false;                  // the tokens have log-probabilities, and `offsets`
  // Of each token: the characters of the answer's text before it, also of a token without text. A
  // character of several tokens begins at each of them. Stop strings, calls and reasoning count.
  std::vector<size_t> offsets = {};
  bool empty() const {
    return text.empty() && reasoning.empty() && calls.empty() && tokens.empty();
  }
};

// How a choice ended.
struct ChoiceEnd {
  EndReason reason = EndReason::kLength;  // kLength, kEos, kStopId or kStopString
  std::string stop_string = {};           // with kStopString
  int32_t stop_id = -1;                   // with kEos and kStopId
  int32_t tool_calls = 0;                 // complete ones
  bool cut_call = false;                  // the last call is incomplete
  int64_t generated_tokens = 0;           // without those after a stop string
  int64_t reasoning_tokens = 0;           // of these, with the tags around the reasoning
  double decode_seconds = 0;              // from its first token to its end
};

// Last, once, if the answer is complete.
struct AnswerEnd {
  std::vector<ChoiceEnd> choices = {};
  StreamEnd usage = {};  // of all choices
};

using AnswerEvent =
    std::variant<RequestAccepted, PromptScored, PromptProgress, AnswerDelta, AnswerEnd>;

// Progress of the scoring of a text.
struct ScoreProgress {
  int64_t scored_tokens = 0;
  double sum_logprob = 0;                 // of those, natural logarithm
  std::vector<SampledToken> tokens = {};  // since the last event, if requested
};

// Last, once.
struct ScoreEnd {
  int64_t scored_tokens = 0;
  double sum_logprob = 0;
  int64_t text_bytes = 0;  // of the text, or of the text of the ids
  StreamEnd usage = {};
};

using ScoreEvent = std::variant<RequestAccepted, ScoreProgress, ScoreEnd>;

// The embedding of one prompt, of length 1.
struct Embedded {
  size_t input = 0;
  std::vector<float> values = {};
  int64_t prompt_tokens = 0;
};

// Last, once.
struct EmbedEnd {
  StreamEnd usage = {};  // of all prompts
};

using EmbedEvent = std::variant<RequestAccepted, Embedded, EmbedEnd>;

// Approximate bytes of a token in a message. Events are cut near kEventBytes, so that a client that
// was slow does not get one beyond its limit of message size.
inline constexpr size_t kEventBytes = 256 << 10;
inline size_t size_of(const SampledToken& token, bool logprobs) {
  constexpr size_t kPlain = 16, kWithLogprob = 40;
  return kPlain + (logprobs ? kWithLogprob * (1 + token.top.size()) : 0);
}

}  // namespace recurve
