#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/request/refusal.h"
#include "server/request/request.h"
#include "server/request/serving_info.h"
#include "server/serving/text_request.h"
#include "server/text/chat/chat_template.h"
#include "server/text/stream_decoder.h"
#include "server/text/tokenizers/tokenizer.h"
#include "server/text/work_limits.h"

namespace recurve {

inline constexpr size_t kMaxNameLength = 128;  // of sessions, marks and request ids
inline constexpr int32_t kDefaultMaxTokens = 256;
inline constexpr size_t kMaxPrefixPoints = 8;  // of a request: each reads a part of the prompt anew

// The longest tokens that an answer may have.
struct LongestTokens {
  int64_t in_json = 0;             // bytes of the longest, as JSON writes it
  std::vector<int64_t> sums = {};  // [k]: bytes of the k + 1 longest
};

// How one model reads and writes text, and what its requests are checked against. Constant once the
// model is loaded.
struct ModelText {
  std::shared_ptr<const Tokenizer> tokenizer;
  TokenRules tokens;
  SamplingVocab vocab;
  Chat chat;
  ToolRules tools;
  LongestTokens longest;
  // The control token that the chat template writes behind an answer; empty: none.
  std::optional<int32_t> answer_end;
  int64_t max_prompt_tokens = 0;
  int32_t max_generated_tokens = 0;
  int32_t max_choices = 0;
};

// A request that can be handed to the engine, and what is kept of it for its answer.
struct ParsedRequest {
  // With its streams; no deadline, and no id where the client gave none.
  Request request = {};
  std::vector<std::string> stop_strings = {};
  bool include_stop = false;
  std::optional<ConstraintText> constraint = {};  // still to be compiled, for request.sampling
  std::string constraint_field = {};              // as the client knows it
  std::optional<ToolReading> tools = {};
  TextPosition answer_position = TextPosition::kContinued;
};

// Bytes of a prompt that validate() reads.
size_t bytes_to_read(const TextRequest& asked);

// Checks everything that can be known without the engine, and tokenises. Each refusal is kInvalid
// with a sentence that names the field, what is allowed and what was given. Throws WorkUnwanted
// where the limits do.
Refused validate(TextRequest asked, const ModelText& model, const WorkLimits& limits,
                 ParsedRequest* parsed);

// The same for what is said of a text to be scored; the prompt is left out.
Refused validate(const ScoreOptions& options, ParsedRequest* parsed);

// The ids of a text or of messages as they are read for an answer, with BOS where the rules want
// it. Throws WorkUnwanted where the limits do.
Refused tokenise(TokenizeText asked, const ModelText& model, const WorkLimits& limits,
                 std::vector<int32_t>* ids);

// What the rules want in front of a prompt; nothing where it is there already. `is_text`: the
// client sent a text.
std::optional<int32_t> bos_for(const std::vector<int32_t>& ids, bool add_special, bool is_text,
                               const ModelText& model);
// Refuses a text where the server has no tokenizer. `field`: where the text stands.
Refused check_text(std::string_view field, std::string_view text, const ModelText& model);
// What is said of a text that has so many tokens that it was not read to its end.
Refusal too_many_tokens(const ModelText& model);
Refused check_ids(std::string_view field, const std::vector<int32_t>& ids, const ModelText& model);
// 1 to kMaxNameLength of [A-Za-z0-9._-].
Refused check_name(std::string_view field, std::string_view name);

// Something no other request or session is called: the prefix, and 16 hexadecimal digits by chance.
std::string make_name(std::string_view prefix);

}  // namespace recurve
