#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/text/tokenizers/token_files.h"
#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// Reads a SentencePiece tokenizer.model of type Unigram or BPE. Its ids are those of the
// SentencePiece library. StreamDecoder decodes like the library's Decode, except for byte pieces
// that are not valid UTF-8 together.
//
// `others` names pieces that are control tokens although the model has another type for them, like
// those around Gemma's turns. Text that is not trusted does not become control tokens.
//
// `file` names the source in messages. Throws std::runtime_error.
std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view model, const std::string& file,
                                               const TokenFiles& others = {});

}  // namespace recurve
