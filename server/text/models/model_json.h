#pragma once

#include <nlohmann/json.hpp>

#include "server/text/tokenizers/pipeline_tokenizer.h"

namespace recurve {

// The "model" of a tokenizer.json: BPE, Unigram or WordPiece. Sets parts.vocabulary and
// parts.model; parts.added must be there, since control tokens are not found in texts.
// `byte_level`: its symbols are bytes, named in the byte-level alphabet.
void read_model(const nlohmann::json& model, bool byte_level, PipelineTokenizer::Parts& parts);

}  // namespace recurve
