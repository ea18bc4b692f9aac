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
#include "server/serving/reasoning_use.h"
#include "server/serving/text_request.h"
#include "server/text/chat/chat_template.h"
#include "server/text/stream_decoder.h"
#include "server/text/tokenizers/tokenizer.h"
#include "server/text/work_limits.h"

namespace recurve {

class Access;

inline constexpr size_t kMaxNameLength = 128;  // of sessions, marks and request ids
inline constexpr size_t kMaxPrefixPoints = 8;  // of a request: each tokenizes a part of the prompt
inline constexpr double kMaxTtlSeconds = 1e9;  // of sessions
inline constexpr int kDefaultPageSize = 100, kMaxPageSize = 1000;  // of lists of sessions

// The longest tokens of a vocabulary.
struct LongestTokens {
  int64_t in_json = 0;             // bytes of the longest as JSON
  std::vector<int64_t> sums = {};  // [k]: bytes of the k + 1 longest
};

// Text and token ids of one model, and the limits of its requests. Constant after loading.
struct ModelText {
  std::shared_ptr<const Tokenizer> tokenizer;
  TokenRules tokens;
  SamplingVocab vocab;
  std::shared_ptr<const std::vector<uint64_t>> control_ids;  // a bit for each id
  Chat chat;
  ToolRules tools;
  ReasoningRules reasoning;
  LongestTokens longest;
  // The control token that the chat template writes after an answer; empty: none.
  std::optional<int32_t> answer_end;
  int64_t max_prompt_tokens = 0;
  int32_t max_generated_tokens = 0;
  int32_t max_tokens_default = 0;  // of chats: see default_max_tokens(). 0: max_generated_tokens
  int32_t max_choices = 0;
  std::vector<InitialStatePtr> initial_states;
  std::vector<BoundAdapterPtr> adapters;
  const Access* access = nullptr;  // says which of these a caller sees; null: it sees all
  int32_t width = 0;               // most dimensions of an embedding; 0: the model has none
};

// A request for the engine, and what its answer needs later.
struct ParsedRequest {
  // With its streams, without a deadline; without an id if the client gave none.
  Request request = {};
  std::shared_ptr<ServedModel> model = {};  // of the TextRequest
  std::vector<std::string> stop_strings = {};
  bool include_stop = false;
  std::optional<ConstraintText> constraint = {};  // not compiled yet, for request.sampling
  std::string constraint_field = {};              // its name in refusals
  FieldNames names = {};
  std::optional<ToolReading> tools = {};
  std::optional<ReasoningReading> reasoning = {};
  TextPosition answer_position = TextPosition::kContinued;  // of a session: if it is new
};

// Bytes of a prompt that validate() tokenizes.
size_t bytes_to_read(const TextRequest& asked);

// Checks what can be checked without the engine, and tokenizes. Each refusal is kInvalid, or
// kNotFound for the name of an adapter or initial state, with a sentence that names the field, what
// is allowed and what was given. Throws WorkUnwanted if the limits do.
Refused validate(TextRequest asked, const ModelText& model, const WorkLimits& limits,
                 ParsedRequest* parsed);

// The same for a text to be scored, without its prompt.
Refused validate(const ScoreOptions& options, const ModelText& model, ParsedRequest* parsed);

// The ids of a text or of messages, as a request for an answer has them, with BOS if the model
// needs it. Throws WorkUnwanted if the limits do.
Refused tokenise(TokenizeText asked, const ModelText& model, const WorkLimits& limits,
                 std::vector<int32_t>* ids);

// The BOS to insert before a prompt; nothing if it is not needed or present. `is_text`: the client
// sent a text.
std::optional<int32_t> bos_for(const std::vector<int32_t>& ids, bool add_special, bool is_text,
                               const ModelText& model);
// Refuses a text if the server has no tokenizer. `field`: its name in the refusal.
Refused check_text(std::string_view field, std::string_view text, const ModelText& model);
// The refusal of a text that was not tokenized to its end because it has too many tokens.
Refusal too_many_tokens(const ModelText& model);
Refused check_ids(std::string_view field, const std::vector<int32_t>& ids, const ModelText& model);
// 1 to kMaxNameLength of [A-Za-z0-9._-].
Refused check_name(std::string_view field, std::string_view name);

// The same for a command of a session, as far as possible without the engine. Gives a session that
// is created a name if it has none.
Refused validate(SessionCommand* command);

// Parses a serialized state for a kImport. `cut`: it had more bytes than any state of this model,
// and the rest was not read. Every array's values are checked. On a text thread.
Refused read_state(const ServingInfo& info, std::string_view written, bool cut,
                   SessionCommand* command);

// A unique name for a request or session: the prefix and 16 random hexadecimal digits.
std::string make_name(std::string_view prefix);

}  // namespace recurve
