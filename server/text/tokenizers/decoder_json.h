#pragma once

#include <nlohmann/json.hpp>

#include "server/text/tokenizers/token_decoder.h"

namespace recurve {

// The "decoder" of a tokenizer.json: ByteLevel, Metaspace, WordPiece, Fuse, or a Sequence of
// Replace, ByteFallback, Fuse and, last, a Strip of one space in front.
TokenDecoder read_decoder(const nlohmann::json* decoder);

}  // namespace recurve
