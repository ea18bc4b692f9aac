#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/text/tokenizers/token_files.h"
#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// Reads a tokenizer.json (Hugging Face `tokenizers`).
//
// Supported:
//   model          BPE of bytes or characters (with byte_fallback, unk_token, fuse_unk,
//                  ignore_merges), Unigram, WordPiece
//   normalizer     NFC, NFD, NFKC, NFKD, Nmt, Precompiled, Lowercase, StripAccents, BertNormalizer,
//                  Replace, Prepend, Strip, Sequence
//   pre_tokenizer  ByteLevel, Metaspace, Split, Digits, Punctuation, Whitespace, WhitespaceSplit,
//                  CharDelimiterSplit, BertPreTokenizer, Sequence
//   decoder        ByteLevel, Metaspace, WordPiece, Fuse, and sequences of Replace, ByteFallback,
//                  Fuse and Strip
//   added tokens   with all their flags
// A byte-level model needs exactly one ByteLevel in its pre_tokenizer, and that decoder. The
// post-processor is ignored: it only adds tokens around a text, which encode() never does. Ids are
// those of `tokenizers`, except that in text that is kAsText, a Unigram model finds no control
// tokens and the merges of a BPE model produce none. If `others` names no BOS or EOS, both are
// "<|endoftext|>" if it is a control token, else "<s>" and "</s>".
//
// `file` names the source in messages. Throws UnsupportedTokenizer for a well-formed file that
// needs something else, std::runtime_error for any other. Memory is bounded by a small multiple of
// the text.
std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view json, const std::string& file,
                                                const TokenFiles& others = {});

}  // namespace recurve
