#pragma once

#include <nlohmann/json.hpp>

#include "server/text/normalizers/normalizer_chain.h"

namespace recurve {

// The "normalizer" of a tokenizer.json; null: none.
NormalizerChain read_normalizer(const nlohmann::json* normalizer);

}  // namespace recurve
