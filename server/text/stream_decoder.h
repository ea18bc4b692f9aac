#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "server/text/tokenizers/tokenizer.h"
#include "server/text/utf8.h"

namespace recurve {

// Token ids to text, one id at a time. The concatenation of everything returned is valid UTF-8 and
// equals decoding all ids at once; no piece holds part of a character. One stream, one thread.
class StreamDecoder {
 public:
  // `tokenizer` must outlive the decoder.
  explicit StreamDecoder(const Tokenizer& tokenizer, TextPosition position = TextPosition::kStart);

  // The text that is now complete; empty while a character is unfinished. Bytes that cannot be
  // UTF-8 become U+FFFD as soon as that is certain.
  std::string push(int32_t id);

  // The rest: U+FFFD if a character was left unfinished, else empty.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  Utf8Assembler utf8_;
  LeadingSpace strip_;  // what is still to be stripped
};

// All ids at once.
std::string decode(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                   TextPosition position = TextPosition::kStart);

}  // namespace recurve
