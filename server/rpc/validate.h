#pragma once
#include <grpcpp/support/status.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "recurve/v1/inference.pb.h"
#include "server/request/request.h"
#include "server/rpc/serving_info.h"
#include "server/text/chat_template.h"
#include "server/text/stream_decoder.h"
#include "server/text/tokenizer.h"
#include "server/text/work_limits.h"

namespace recurve {

inline constexpr size_t kMaxNameLength = 128;  // of sessions, marks and request ids
inline constexpr int32_t kDefaultMaxTokens = 256;

// What requests are checked against. Constant once the model is loaded.
struct RequestRules {
  std::shared_ptr<const Tokenizer> tokenizer;
  TokenRules tokens;
  SamplingVocab vocab;
  Chat chat;
  // The control token that the chat template writes behind an answer; empty: none.
  std::optional<int32_t> answer_end;
  int64_t max_prompt_tokens = 0;
  int32_t max_generated_tokens = 0;
  int32_t max_choices = 0;

  // Of the work on one text.
  WorkLimits limits(const std::atomic<bool>* unwanted) const {
    return {.unwanted = unwanted, .most_tokens = static_cast<size_t>(max_prompt_tokens)};
  }
};

// A request that can be handed to the engine, and what the rpc side keeps of it.
struct ParsedRequest {
  // With its streams; no deadline, and no id where the client gave none.
  Request request;
  std::vector<std::string> stop_strings;
  bool include_stop = false;
  TextPosition answer_position = TextPosition::kContinued;
};

// Checks everything that can be known without the engine, and tokenises. Each refusal is
// INVALID_ARGUMENT with a sentence that names the field, what is allowed and what was given. Throws
// WorkUnwanted where the limits do.
grpc::Status validate(const v1::GenerateRequest& message, const RequestRules& rules,
                      const WorkLimits& limits, ParsedRequest* parsed);

// The same for what a Score says before its text; the prompt is left out.
grpc::Status validate(const v1::ScoreOptions& options, ParsedRequest* parsed);
// What the rules want in front of a prompt that begins with `ids`, at least one; nothing if it is
// there. `is_text`: the ids were a text.
std::optional<int32_t> bos_before(const std::vector<int32_t>& ids, const v1::ScoreOptions& options,
                                  bool is_text, const RequestRules& rules);

// The ids of a text or of messages as Generate reads them, with BOS where the rules want it. Throws
// WorkUnwanted where the limits do.
grpc::Status tokenise(const v1::TokenizeRequest& message, const RequestRules& rules,
                      const WorkLimits& limits, std::vector<int32_t>* ids);

// What the rules want in front of a prompt; nothing where it is there already. `is_text`: the
// client sent a text.
std::optional<int32_t> bos_for(const std::vector<int32_t>& ids, bool add_special, bool is_text,
                               const RequestRules& rules);
// Refuses a text where the server has no tokenizer. `field`: where the text stands.
grpc::Status check_text(std::string_view field, std::string_view text, const RequestRules& rules);
grpc::Status check_prompt_size(int64_t tokens, const RequestRules& rules);
// What is said of a text that has so many tokens that it was not read to its end.
grpc::Status too_many_tokens(const RequestRules& rules);
grpc::Status check_ids(std::string_view field, const std::vector<int32_t>& ids,
                       const RequestRules& rules);
// 1 to kMaxNameLength of [A-Za-z0-9._-].
grpc::Status check_name(std::string_view field, std::string_view name);

// Something no other request or session is called: the prefix, and 16 hexadecimal digits by chance.
std::string make_name(std::string_view prefix);
uint64_t random_number();

}  // namespace recurve
