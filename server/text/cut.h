#pragma once
#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

// Depends on nothing: each folder whose sentences quote a client, or a file, may include it.

namespace recurve {

// How much of a client's text a sentence quotes, and how long a sentence is as a whole: frontends
// cut it where they send it. gRPC sends it in a header, whose size clients bound.
inline constexpr size_t kMostQuoted = 64, kMostSaid = 512;
// How much it repeats of a library's sentence, or a path into a client's schema.
inline constexpr size_t kMostRepeated = 200;

// The bytes of the character that UTF-8 begins with, as RFC 3629 has it; 0 where it begins with
// none.
inline size_t bytes_of_character(std::string_view utf8) {
  const auto byte = [&](size_t i) {
    return i < utf8.size() ? static_cast<unsigned char>(utf8[i]) : 0u;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return utf8.empty() ? 0 : 1;
  const size_t size = lead < 0xC2 || lead > 0xF4 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  const unsigned least = lead == 0xE0   ? 0xA0
                         : lead == 0xF0 ? 0x90
                                        : 0x80,
                 most = lead == 0xED   ? 0x9F
                        : lead == 0xF4 ? 0x8F
                                       : 0xBF;
  bool whole = size > 0 && byte(1) >= least && byte(1) <= most;
  for (size_t i = 2; i < size; ++i) whole = whole && byte(i) >= 0x80 && byte(i) <= 0xBF;
  return whole ? size : 0;
}

// What a sentence shows for a character: white space as a space, other control characters (U+0080
// to U+009F among them, which terminals apply) as "?".
inline std::string_view shown_character(std::string_view character) {
  const auto first = static_cast<unsigned char>(character.front());
  if (first >= '\t' && first <= '\r') return " ";
  if (first < ' ' || first == 0x7F) return "?";
  if (first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0) return "?";
  return character;
}

// The first bytes of a text, whole characters, and "..." where there is more: valid UTF-8 in one
// line, whatever the text is. Bytes that are not UTF-8 are U+FFFD.
inline std::string cut(std::string_view text, size_t most = kMostQuoted) {
  std::string out;
  while (!text.empty()) {
    const size_t size = bytes_of_character(text);
    const std::string_view next =
        size == 0 ? "\xEF\xBF\xBD" : shown_character(text.substr(0, size));
    if (out.size() + next.size() > most) return out + "...";
    out += next;
    text.remove_prefix(std::max<size_t>(size, 1));
  }
  return out;
}

}  // namespace recurve
