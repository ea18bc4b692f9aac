#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// The "decoder" of a tokenizer.json, which tells the bytes that a token adds to a text.
struct TokenDecoder {
  enum class Kind {
    kByteLevel,  // the name is in the byte-level alphabet
    kReplace,    // text is replaced in the name; tokens are concatenated
    kMetaspace,  // the mark is a space, or nothing where the first token begins with it
    kWordPiece,  // a space before each token except the first and those with the prefix
  };
  Kind kind = Kind::kByteLevel;
  std::vector<std::pair<std::string, std::string>> replacements;  // of kReplace
  bool byte_fallback = false;                                     // "<0x0A>" is a byte
  bool strips_space = false;      // one, at the beginning of the text
  std::string mark;               // of kMetaspace and kWordPiece
  bool drops_first_marks = true;  // of kMetaspace
  bool cleanup = false;           // " ." becomes ".", and so on

  // `first`: the token is the first of a text.
  std::string bytes_of(std::string_view name, bool first) const;
  LeadingSpace leading_space() const;
};

// The byte of a name like "<0x0A>", -1 for any other name.
int byte_of_name(std::string_view name);

// The "decoder" of a tokenizer.json: ByteLevel, Metaspace, WordPiece, Fuse, or a Sequence of
// Replace, ByteFallback, Fuse and, last, a Strip of one space in front.
TokenDecoder read_decoder(const nlohmann::json* decoder);

}  // namespace recurve
