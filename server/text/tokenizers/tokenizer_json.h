#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/text/tokenizers/token_files.h"
#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// A tokenizer from the text of a tokenizer.json (Hugging Face `tokenizers`).
//
// Understood:
//   model          BPE of bytes or characters (with byte_fallback, unk_token, fuse_unk,
//                  ignore_merges), Unigram, WordPiece
//   normalizer     NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Lowercase, StripAccents, BertNormalizer,
//                  Replace, Prepend, Strip, Sequence
//   pre_tokenizer  ByteLevel, Metaspace, Split, Digits, Punctuation, Whitespace, WhitespaceSplit,
//                  CharDelimiterSplit, BertPreTokenizer, Sequence
//   decoder        ByteLevel, Metaspace, WordPiece, Fuse, and sequences of Replace, ByteFallback,
//                  Fuse and Strip
//   added tokens   with all their flags
// A byte-level model has exactly one ByteLevel in its pre_tokenizer, and that decoder. The
// post-processor only adds tokens around a text, which encode() never does, and is left out. Ids
// are those of `tokenizers`, but that a Unigram model does not find control tokens in text that is
// kAsText, nor a BPE model any that its merges would make. Where the other files name no BOS or
// EOS:
// "<|endoftext|>" is both if it is a control token, else "<s>" and "</s>".
//
// `file` names the source in messages. Throws UnsupportedTokenizer for what is well formed but not
// implemented, std::runtime_error for what is not; memory is bounded by a small multiple of the
// text.
std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view json, const std::string& file,
                                                const TokenFiles& others = {});

}  // namespace recurve
