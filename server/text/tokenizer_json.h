#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/text/tokenizer.h"

namespace recurve {

// The names of BOS and EOS, which tokenizer.json itself does not tell (tokenizer_config.json does).
struct SpecialNames {
  std::optional<std::string> bos;
  std::optional<std::string> eos;
};

// A BPE tokenizer from the text of a tokenizer.json (Hugging Face `tokenizers`): byte-level, or of
// characters, where there is no pre_tokenizer and the decoder is Fuse.
//
// Understood: normalizer NFC, NFD, NFKC, NFKD, Sequence; pre_tokenizer ByteLevel, Split, Digits,
// Punctuation, Sequence (with exactly one ByteLevel); model BPE (of characters: without unk_token,
// so that characters that are no token are left out); decoder ByteLevel; added tokens with all
// their flags. The post-processor only adds tokens around a text, which encode() never does, and is
// left out. Names without an entry in `names`: "<|endoftext|>" is both BOS and EOS if it is a
// control token, else "<s>" and "</s>".
//
// `file` names the source in messages. Throws UnsupportedTokenizer for what is well formed but not
// implemented, std::runtime_error for what is not; memory is bounded by a small multiple of the
// text.
std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view json, const std::string& file,
                                                const SpecialNames& names = {});

}  // namespace recurve
