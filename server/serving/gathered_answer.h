#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "server/serving/server_core.h"
#include "server/serving/text_request.h"

namespace recurve {

// What an answer takes until it is sent, by the form that it is gathered in. The numbers are
// measured: tests/server/kserve/gathered_memory_test.cc.
struct GatheredForm {
  int64_t text;          // bytes a byte of text, as JSON writes it
  int64_t entry;         // bytes a token with its log-probability
  int64_t entry_text;    // bytes a byte of such a token's text
  bool answer = true;    // false: only what it repeats of the prompt is gathered
  int64_t repeated = 0;  // bytes of prompts that the answers repeat, all of them together
};
inline constexpr GatheredForm kGatheredChoices{.text = 4, .entry = 450, .entry_text = 50};
inline constexpr GatheredForm kGatheredTensors{.text = 4, .entry = 450, .entry_text = 20};
// Of a response, which is stored too; and where its events repeat it.
inline constexpr GatheredForm kGatheredResponse{.text = 6, .entry = 1400, .entry_text = 90};
inline constexpr GatheredForm kGatheredEvents{.text = 18, .entry = 1400, .entry_text = 200};

// The most bytes that the answer takes where it is gathered before it is sent, beside what its
// prompt repeats.
int64_t most_bytes_gathered(const TextRequest& asked, const ModelText& model,
                            const GatheredForm& form);

// Takes memory for the answers to all of them, which are gathered, before anything is computed:
// refused with the numbers where one request, a tenant or all calls together would have too much.
Refused hold_gathered(ServerCore& core, const ModelText& model, const Identity& caller,
                      std::span<const TextRequest> asked, const GatheredForm& form,
                      ByteBudget::Share* share);
// The same for an answer whose size is known: of the texts or ids in `field`.
Refused hold_answer(ServerCore& core, const Identity& caller, const char* field, int64_t bytes,
                    ByteBudget::Share* share);

// The bytes of a text as JSON writes it, or the name of one that is not UTF-8.
int64_t bytes_in_json(std::string_view text);
// Of the texts of tokens, one after another.
int64_t bytes_in_json(std::span<const int32_t> ids, const Tokenizer& tokenizer);

// What of a tokenizer decides how large an answer may be.
LongestTokens longest_tokens(const Tokenizer& tokenizer, int32_t ids);

}  // namespace recurve
