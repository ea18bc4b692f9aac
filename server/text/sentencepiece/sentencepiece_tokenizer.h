#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/text/tokenizers/token_files.h"
#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// A tokenizer from the bytes of a SentencePiece tokenizer.model of type unigram or BPE, with the
// ids of the SentencePiece library. Decoding through StreamDecoder gives what the library's Decode
// gives, but for byte pieces that do not add up to UTF-8, where StreamDecoder's rule holds.
//
// `others` names pieces that are control tokens though the model says something else of them, as
// those that begin and end Gemma's turns: a text that is not trusted cannot have them.
//
// `file` names the source in messages. Throws std::runtime_error with one sentence.
std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view model, const std::string& file,
                                               const TokenFiles& others = {});

}  // namespace recurve
