#pragma once
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "server/sampling/sampled_token.h"
#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// JSON has no infinity: -9999 instead, as in other servers of the dialect.
double finite(float logprob);
size_t characters(std::string_view utf8);
// A token's text; if that is not UTF-8, its bytes: "bytes:\xe2\x82".
std::string name_of(int32_t id, const Tokenizer& tokenizer);
// A token with its likeliest alternatives, in the form of chat completions and responses.
nlohmann::json chat_logprob(const SampledToken& token, const Tokenizer& tokenizer);

}  // namespace recurve
