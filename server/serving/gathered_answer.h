#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "server/serving/server_core.h"
#include "server/serving/text_request.h"

namespace recurve {

// Memory of an answer that is gathered before it is sent, in each of its forms. The numbers are
// measured: tests/server/kserve/gathered_memory_test.cc.
struct GatheredForm {
  int64_t text;          // bytes for each byte of text as JSON
  int64_t entry;         // bytes for each token with its log-probability
  int64_t entry_text;    // bytes for each byte of such a token's text
  bool answer = true;    // false: only the repeated prompt is gathered
  int64_t repeated = 0;  // bytes of prompts that all answers repeat
};
inline constexpr GatheredForm kGatheredChoices{.text = 4, .entry = 450, .entry_text = 50};
inline constexpr GatheredForm kGatheredTensors{.text = 4, .entry = 450, .entry_text = 20};
// Of a stored response, and of a streamed one, whose events repeat it.
inline constexpr GatheredForm kGatheredResponse{.text = 6, .entry = 1400, .entry_text = 90};
inline constexpr GatheredForm kGatheredEvents{.text = 18, .entry = 1400, .entry_text = 200};

// Tokens of an answer whose request has no max_tokens: kDefaultMaxTokens, or in a chat
// max_tokens_default, but, above kDefaultMaxTokens, no more than 16 MB of a gathered answer hold.
// The engine lowers that of a chat to the rest of the model's context.
int32_t default_max_tokens(const TextRequest& asked, const ModelText& model);

// The most bytes of a gathered answer, without its repeated prompt.
int64_t max_gathered_bytes_of(const TextRequest& asked, const ModelText& model,
                              const GatheredForm& form);

// Reserves memory for the gathered answers to all requests before anything is computed. Refuses
// with the numbers if one request, a tenant or all calls together would exceed their limit.
Refused reserve_gathered(ServerCore& core, const ModelText& model, const Identity& caller,
                         std::span<const TextRequest> asked, const GatheredForm& form,
                         ByteBudget::Share* share);
// The same for an answer of known size, to the texts or ids in `field`.
Refused reserve_answer(ServerCore& core, const Identity& caller, const char* field, int64_t bytes,
                       ByteBudget::Share* share);

// Bytes of a text as JSON; if it is not UTF-8, of its escaped name.
int64_t bytes_in_json(std::string_view text);
// Of the texts of tokens, one after another.
int64_t bytes_in_json(std::span<const int32_t> ids, const Tokenizer& tokenizer);

LongestTokens longest_tokens(const Tokenizer& tokenizer, int32_t ids);

}  // namespace recurve
