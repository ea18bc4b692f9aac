#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "server/text/tokenizers/tokenizer.h"
#include "server/text/utf8.h"

namespace recurve {

// Decodes token ids to text, one id at a time. Everything returned is in whole characters of valid
// UTF-8, and together equals decode() of all ids. For one stream in one thread.
class StreamDecoder {
 public:
  // `tokenizer` must outlive the decoder.
  explicit StreamDecoder(const Tokenizer& tokenizer, TextPosition position = TextPosition::kStart);

  // The text that is complete now; empty within a character. Bytes that cannot be UTF-8 become
  // U+FFFD as soon as that is certain.
  std::string push(int32_t id);
  // The characters of the text, and those before the last id. A character of several ids begins at
  // each of them.
  size_t characters() const { return characters_; }
  size_t offset() const { return offset_; }

  // U+FFFD if the last character is incomplete, else empty.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  Utf8Assembler utf8_;
  LeadingSpace strip_;  // what remains to be stripped
  size_t characters_ = 0, offset_ = 0;
};

// Decodes all ids at once.
std::string decode(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                   TextPosition position = TextPosition::kStart);

}  // namespace recurve
