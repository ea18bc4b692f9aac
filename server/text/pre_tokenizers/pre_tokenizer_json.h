#pragma once

#include <nlohmann/json.hpp>

#include "server/text/pre_tokenizers/pre_tokenizer.h"

namespace recurve {

// The "pre_tokenizer" of a tokenizer.json; null: nothing is cut.
PreTokenizer read_pre_tokenizer(const nlohmann::json* pre_tokenizer);

}  // namespace recurve
