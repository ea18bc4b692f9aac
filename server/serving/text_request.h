#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/constraint/constraint.h"
#include "server/identity/identity.h"
#include "server/request/binding.h"
#include "server/request/prefix_use.h"
#include "server/request/request.h"
#include "server/request/session_command.h"
#include "server/sampling/params.h"
#include "server/serving/tool_use.h"
#include "server/text/chat/chat_input.h"

namespace recurve {

struct ServedModel;

// Requests as the frontends read them: not checked, not tokenized. The values here are the
// defaults. `model`: what ServerCore::find() has found for the message.

// A model, or an adapter of one.
struct FoundModel {
  FoundModel(std::shared_ptr<ServedModel> model_ = {}, std::string adapter_ = {})
      : model(std::move(model_)), adapter(std::move(adapter_)) {}

  std::shared_ptr<ServedModel> model;
  std::string adapter;  // whose name the message has in place of the model's; empty: none

  ServedModel* operator->() const { return model.get(); }
  ServedModel& operator*() const { return *model; }
  // As answers call it.
  const std::string& name() const;
};

// The names of fields in refusals, where frontends differ.
struct FieldNames {
  const char* prompt = "prompt";
  const char* max_tokens = "max_tokens";
  const char* logprobs = "logprobs";
  const char* prompt_logprobs = "prompt_logprobs";
  const char* stop_strings = "stop_strings";
  const char* include_stop = "include_stop";
};

// A request for an answer to a prompt.
struct TextRequest {
  // 1 to kMaxNameLength of [A-Za-z0-9._-]; empty: generated. See Request::id.
  std::string id = {};
  Identity caller = kAnyone;
  FoundModel model = {};
  // Ids, a text or messages. May be empty only where a session has a pending token.
  std::variant<std::vector<int32_t>, std::string, Conversation> prompt = {};
  bool add_special_tokens = true;  // BOS by the rules of the model
  bool parse_special = false;      // names of control tokens in a text become their ids
  // Without the optional ones below.
  SamplingParams sampling = {};
  std::optional<uint64_t> seed = {};       // left out: drawn
  std::optional<int32_t> max_tokens = {};  // left out: default_max_tokens()
  bool is_chat = false;                    // the answer is a turn, which the model may end
  // Log-probabilities of the answer and of the prompt, with this number of top tokens.
  std::optional<int32_t> logprobs = {}, prompt_logprobs = {};
  std::vector<std::string> stop_strings = {};
  bool include_stop = false;
  // Constrains the text of the answer.
  std::optional<ConstraintText> constraint = {};
  std::string constraint_field = "constraint";  // its name in refusals
  // Separates calls of tools from the text, and constrains them to the tools. Left out: calls are
  // text.
  std::optional<ToolUse> tools = {};
  int32_t choices = 1;
  std::string session = {};      // empty: none
  bool session_is_kept = false;  // internal, see reserved_name()
  BindingNames chosen = {};
  std::optional<uint64_t> expected_epoch = {};  // of the session; left out: any
  bool report_progress = false;                 // of the prompt
  int32_t priority = 0;
  PrefixMode prefix = PrefixMode::kUseAndStore;
  // Lengths of prefixes to cache: in ids, bytes of a text, or messages.
  std::vector<int64_t> prefix_points = {};
  std::optional<Durability> durability = {};  // left out: that of the session
  FieldNames names = {};
};

// A request for the score of a text.
struct ScoreOptions {
  std::string id = {};
  Identity caller = kAnyone;
  FoundModel model = {};
  std::string adapter = {};  // by its name; empty: none
  bool add_special_tokens = true;
  bool parse_special = false;
  std::optional<int32_t> top = {};  // top tokens for each token; left out: sums only
  int32_t priority = 0;
};
// The text arrives in pieces of text, which may end within a character, or of ids.
struct ScorePiece {
  std::optional<ScoreOptions> options = {};  // of the first piece
  std::variant<std::monostate, std::string, std::vector<int32_t>> content = {};
};

// A request for the embeddings of prompts.
struct EmbedRequest {
  std::string id = {};
  FoundModel model = {};
  std::string adapter = {};  // by its name; empty: none
  std::vector<std::variant<std::vector<int32_t>, std::string>> inputs = {};
  bool add_special_tokens = true;
  bool parse_special = false;
  Pooling pooling = Pooling::kLast;
  std::optional<int32_t> dimensions = {};  // the first ones; left out: all
  int32_t priority = 0;
};
inline constexpr size_t kMaxEmbedInputs = 2048;  // of one request

// The ids of a text or of messages.
struct TokenizeText {
  std::variant<std::string, Conversation> input = {};
  bool add_special_tokens = true;
  bool parse_special = false;
  bool continued = false;  // messages that continue a session
};

}  // namespace recurve
