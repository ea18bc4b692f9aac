#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace recurve {

// Whether a byte of UTF-8 goes on with a character, where others begin one.
inline bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// How many of the first `bytes` of valid UTF-8 are whole characters; all of them, if there are no
// more.
size_t whole_characters(std::string_view utf8, size_t bytes);

// Where the character begins that stands `count` characters before the one at `at`; 0 if there are
// fewer.
size_t characters_before(std::string_view utf8, size_t at, size_t count);

// Strict UTF-8 as in RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_valid_utf8(std::string_view bytes);

// What bytes begin with.
struct Utf8Prefix {
  size_t whole;  // bytes of the whole characters in front
  bool broken;   // what comes behind those is no character's beginning
};
Utf8Prefix utf8_prefix(std::string_view bytes);

// The code points of valid UTF-8.
std::u32string to_utf32(std::string_view utf8);

// U+FFFD, what stands for bytes that are not UTF-8.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// Copies bytes into text as they become whole characters. Invalid bytes become U+FFFD, one for each
// "maximal subpart" (Unicode 15, section 3.9, table 3-8), as Python's errors="replace" does.
class Utf8Assembler {
 public:
  // Appends to `out` every character that is complete, and U+FFFD as soon as a byte is known to be
  // wrong. At most 3 bytes are held back.
  void push(std::string_view bytes, std::string& out);

  // Appends U+FFFD if a character was left unfinished.
  void finish(std::string& out);

  bool empty() const { return size_ == 0; }

 private:
  void start(unsigned char byte, std::string& out);
  void reject(std::string& out);

  char pending_[4] = {};      // the first size_ bytes of a character
  int size_ = 0;              // bytes in pending_
  int need_ = 0;              // bytes the character has
  unsigned char low_ = 0x80;  // range of the next byte
  unsigned char high_ = 0xBF;
};

// `bytes` with every invalid part replaced by U+FFFD.
std::string to_valid_utf8(std::string_view bytes);

}  // namespace recurve
