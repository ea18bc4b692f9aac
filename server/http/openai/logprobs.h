#pragma once
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "server/sampling/sampled_token.h"
#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// JSON has no infinity: -9999 instead, as in other servers of the dialect.
double finite(float logprob);

// How a response names tokens.
struct TokenNames {
  const Tokenizer& tokenizer;
  bool as_ids = false;  // "token_id:17"

  // Without as_ids, a token's text; if that is not UTF-8, its bytes: "bytes:\xe2\x82".
  std::string of(int32_t id) const;
};
// A token and its likeliest alternatives by name. Of several with one text, the token itself or the
// likeliest has the text as its name, the others "token_id:17".
nlohmann::json logprobs_by_name(const SampledToken& token, const TokenNames& names);
// A token with its likeliest alternatives, in the form of chat completions and responses.
nlohmann::json chat_logprob(const SampledToken& token, const TokenNames& names);

}  // namespace recurve
