#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/text/token_files.h"
#include "server/text/tokenizer.h"

namespace recurve {

// A tokenizer from the bytes of a SentencePiece tokenizer.model, with the library's ids. A model
// that only merges is run without the library (sentencepiece_bpe.h); any other by the library,
// block by block (sentencepiece_borders.h), so that its time is linear in the text, and a text that
// cannot be cut for long is TextRefused. Decoding through StreamDecoder gives what the library's
// Decode gives, but for byte pieces that do not add up to UTF-8, where StreamDecoder's rule holds.
// The library takes time quadratic in a run of unknown characters if the model has no byte pieces.
//
// `others` names pieces that are control tokens though the model says something else of them, as
// those that begin and end Gemma's turns: a text that is not trusted cannot have them.
//
// `file` names the source in messages. Throws std::runtime_error with one sentence.
std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view model, const std::string& file,
                                               const TokenFiles& others = {});

}  // namespace recurve
