#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/text/tokenizers/tokenizer.h"

namespace recurve {

// The "decoder" of a tokenizer.json: the bytes that a token adds to a text.
struct TokenDecoder {
  enum class Kind {
    kByteLevel,  // the name is in the byte-level alphabet
    kReplace,    // replacements in the name; tokens are joined as they are
    kMetaspace,  // the mark is a space, and nothing in the first token
    kWordPiece,  // a space before each token but those with the prefix and the first
  };
  Kind kind = Kind::kByteLevel;
  std::vector<std::pair<std::string, std::string>> replacements;  // of kReplace
  bool byte_fallback = false;                                     // "<0x0A>" is a byte
  bool strips_space = false;                                      // one, in front of the text
  std::string mark;                                               // of kMetaspace and kWordPiece
  bool drops_first_marks = true;                                  // of kMetaspace
  bool cleanup = false;                                           // " ." is "." and the like

  // `first`: of the first token of a text.
  std::string bytes_of(std::string_view name, bool first) const;
  LeadingSpace leading_space() const;
};

// The byte that a name such as "<0x0A>" stands for, -1 if it is none.
int byte_of_name(std::string_view name);

}  // namespace recurve
