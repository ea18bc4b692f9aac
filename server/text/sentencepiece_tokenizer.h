#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/text/tokenizer.h"

namespace recurve {

// A tokenizer from the bytes of a SentencePiece tokenizer.model. Encoding is the library's,
// block by block (sentencepiece_borders.h), so that its time is linear in the text;
// decoding through StreamDecoder gives what the library's Decode gives, but for byte pieces that do
// not add up to UTF-8, where StreamDecoder's rule holds. The library takes time quadratic in a run
// of unknown characters if the model has no byte pieces.
//
// `file` names the source in messages. Throws std::runtime_error with one sentence.
std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view model, const std::string& file);

}  // namespace recurve
