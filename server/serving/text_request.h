#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "server/constraint/constraint.h"
#include "server/identity/identity.h"
#include "server/request/durability.h"
#include "server/request/prefix_use.h"
#include "server/sampling/params.h"
#include "server/serving/tool_use.h"
#include "server/text/chat/chat_input.h"

namespace recurve {

// What a client asks for, as a door has read it: nothing is checked, and nothing tokenised. What a
// client left out is as it is here.

// An answer to a prompt.
struct TextRequest {
  std::string id = {};  // 1 to kMaxNameLength of [A-Za-z0-9._-]; empty: one is made
  Identity caller = kAnyone;
  // Ids, a text or messages. May be empty only where a session has a pending token.
  std::variant<std::vector<int32_t>, std::string, Conversation> prompt = {};
  bool add_special_tokens = true;  // BOS by the rules of the model
  bool parse_special = false;      // names of control tokens in a text become their ids
  // Without those that stand here by themselves, because they may be left out.
  SamplingParams sampling = {};
  std::optional<uint64_t> seed = {};       // left out: drawn
  std::optional<int32_t> max_tokens = {};  // left out: kDefaultMaxTokens, or the server's limit
  // Of the tokens of the answer and of the prompt, with so many likeliest ones; left out: none.
  std::optional<int32_t> logprobs = {}, prompt_logprobs = {};
  std::vector<std::string> stop_strings = {};
  bool include_stop = false;
  // What the answer's text must be; left out: anything.
  std::optional<ConstraintText> constraint = {};
  std::string constraint_field = "constraint";  // as the client knows it, for refusals
  // Calls of the conversation's tools are told from the text, and kept to what the tools take. Left
  // out: what a model says of tools is text.
  std::optional<ToolUse> tools = {};
  int32_t choices = 1;
  std::string session = {};                     // empty: none
  bool session_is_kept = false;                 // it is the door's own, by kept_name()
  std::optional<uint64_t> expected_epoch = {};  // of the session; left out: any
  int32_t priority = 0;
  PrefixWish prefix = PrefixWish::kUseAndKeep;
  // Behind so many ids of a prompt of ids, bytes of a text, messages of messages.
  std::vector<int64_t> prefix_points = {};
  std::optional<Durability> durability = {};  // left out: as the session is
};

// How likely a text is.
struct ScoreOptions {
  std::string id = {};
  Identity caller = kAnyone;
  bool add_special_tokens = true;
  bool parse_special = false;
  std::optional<int32_t> top = {};  // every token with so many likeliest ones; left out: only sums
  int32_t priority = 0;
};
// The text comes in pieces: of text (a piece may end within a character), or of ids.
struct ScorePiece {
  std::optional<ScoreOptions> options = {};  // in the first piece only; left out: as above
  std::variant<std::monostate, std::string, std::vector<int32_t>> content = {};
};

// The ids of a text or of messages.
struct TokenizeText {
  std::variant<std::string, Conversation> input = {};
  bool add_special_tokens = true;
  bool parse_special = false;
  bool continued = false;  // of messages: as a session absorbs them that has absorbed something
};

}  // namespace recurve
