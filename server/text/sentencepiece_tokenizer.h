#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/text/tokenizer.h"

namespace recurve {

// A tokenizer from the bytes of a SentencePiece tokenizer.model. Encoding is the library's;
// decoding through StreamDecoder gives what the library's Decode gives (where byte pieces do not
// add up to UTF-8, StreamDecoder's rule for U+FFFD holds, not the library's). The library takes
// time quadratic in a run of unknown characters if the model has no byte pieces. `file` names the
// source in messages. Throws std::runtime_error with one sentence.
std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view model, const std::string& file);

}  // namespace recurve
