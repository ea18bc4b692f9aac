#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace recurve {

// U+FFFD, which replaces bytes that are not UTF-8.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// Whether a byte of UTF-8 is a continuation byte, not the first of a character.
inline bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// How many of the first `bytes` of valid UTF-8 are whole characters; all of a shorter text.
size_t whole_characters(std::string_view utf8, size_t bytes);

// The index of the character that is `count` characters before index `at`; 0 if there are fewer.
size_t characters_before(std::string_view utf8, size_t at, size_t count);

// The index of the character after the one at `at`; at + 1 at the end of the text.
size_t next_character(std::string_view utf8, size_t at);

size_t count_characters(std::string_view utf8);

// Strict UTF-8 as in RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_valid_utf8(std::string_view bytes);

// The longest prefix of whole characters.
struct Utf8Prefix {
  size_t whole;  // bytes
  bool broken;   // the bytes after it cannot begin a character, whatever follows
};
Utf8Prefix utf8_prefix(std::string_view bytes);

// The code points of valid UTF-8.
std::u32string to_utf32(std::string_view utf8);

// Copies bytes to a text as they become whole characters. Invalid bytes become U+FFFD, one for each
// "maximal subpart" (Unicode 15, section 3.9, table 3-8), as with errors="replace" in Python.
class Utf8Assembler {
 public:
  // Appends every complete character, and U+FFFD as soon as a byte is known to be invalid. Holds
  // back at most 3 bytes.
  void push(std::string_view bytes, std::string& out);

  // Appends U+FFFD if the last character is incomplete.
  void finish(std::string& out);

  bool empty() const { return size_ == 0; }

 private:
  void start(unsigned char byte, std::string& out);
  void reject(std::string& out);

  char pending_[4] = {};      // the first size_ bytes of a character
  int size_ = 0;              // bytes in pending_
  int need_ = 0;              // bytes of the whole character
  unsigned char low_ = 0x80;  // range of the next byte
  unsigned char high_ = 0xBF;
};

// `bytes` with every invalid part replaced by U+FFFD.
std::string to_valid_utf8(std::string_view bytes);

// Bytes [begin, end) of a text.
struct ByteRange {
  size_t begin;
  size_t end;
};

// A text and ranges of it: ascending, not empty, not adjacent.
struct RangedText {
  std::string text;
  std::vector<ByteRange> ranges;
};

}  // namespace recurve
