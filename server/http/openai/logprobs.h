#pragma once
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "server/sampling/sampled_token.h"
#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// As JSON, which has no infinity: -9999 instead, as the dialect's servers say.
double finite(float logprob);
size_t characters(std::string_view utf8);
// A token's text; one that is part of a character only as its bytes: "bytes:\xe2\x82".
std::string name_of(int32_t id, const Tokenizer& tokenizer);
// A token with its likeliest others, as chat completions and responses say it.
nlohmann::json chat_logprob(const SampledToken& token, const Tokenizer& tokenizer);

}  // namespace recurve
