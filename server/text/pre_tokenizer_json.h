#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "server/text/normalizer.h"
#include "server/text/pre_tokenizer.h"

namespace recurve {

// The "normalizer" of a tokenizer.json (null: none); forms to apply in order.
std::vector<NormalForm> read_normalizer(const nlohmann::json* normalizer);

// The "pre_tokenizer"; it must write the text in the byte-level alphabet, once.
PreTokenizer read_pre_tokenizer(const nlohmann::json* pre_tokenizer);

}  // namespace recurve
