#pragma once
#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

// Depends on nothing, so that every folder whose messages quote a client or a file can include it.

namespace recurve {

// Most bytes of a client's text that a message quotes, and of a whole message, to which frontends
// cut it: gRPC sends it in a header, whose size clients limit.
inline constexpr size_t kMostQuoted = 64, kMostSaid = 512;
// Most bytes of a library's message, or of a path into a client's schema, that a message repeats.
inline constexpr size_t kMostRepeated = 200;

// What the first byte of a character tells in UTF-8: the character's size, 0 for an invalid byte,
// and the range of the second byte. It is narrower after E0, ED, F0 and F4, to exclude overlong
// forms, surrogates and code points above U+10FFFF (RFC 3629; Unicode 15, table 3-7).
struct Utf8Lead {
  size_t size;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
};
inline Utf8Lead utf8_lead(unsigned char byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2 || byte > 0xF4) return {0};
  Utf8Lead lead{byte < 0xE0 ? 2u : byte < 0xF0 ? 3u : 4u};
  if (byte == 0xE0) lead.low = 0xA0;
  if (byte == 0xF0) lead.low = 0x90;
  if (byte == 0xED) lead.high = 0x9F;
  if (byte == 0xF4) lead.high = 0x8F;
  return lead;
}

// The size of the character that `bytes`, which are not empty, begin with; 0 if they begin with
// none. `ends`: set if they end within a character that is valid so far; the size is 0 then.
inline size_t character_size(std::string_view bytes, bool* ends = nullptr) {
  const Utf8Lead lead = utf8_lead(static_cast<unsigned char>(bytes[0]));
  for (size_t i = 1; i < lead.size; ++i) {
    if (i == bytes.size()) {
      if (ends != nullptr) *ends = true;
      return 0;
    }
    const auto byte = static_cast<unsigned char>(bytes[i]);
    const unsigned char low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return 0;
  }
  return lead.size;
}

// What a message shows for a character: a space for white space, "?" for other control characters
// (also U+0080 to U+009F, which terminals interpret).
inline std::string_view shown_character(std::string_view character) {
  const auto first = static_cast<unsigned char>(character.front());
  if (first >= '\t' && first <= '\r') return " ";
  if (first < ' ' || first == 0x7F) return "?";
  if (first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0) return "?";
  return character;
}

// The first `most` bytes of a text, in whole characters, and "..." if there are more. The result is
// one line of valid UTF-8 for any text: invalid bytes become U+FFFD.
inline std::string cut(std::string_view text, size_t most = kMostQuoted) {
  std::string out;
  while (!text.empty()) {
    const size_t size = character_size(text);
    const std::string_view next =
        size == 0 ? "\xEF\xBF\xBD" : shown_character(text.substr(0, size));
    if (out.size() + next.size() > most) return out + "...";
    out += next;
    text.remove_prefix(std::max<size_t>(size, 1));
  }
  return out;
}

// Adds a name to a list that a message shows: "a", "b".
inline void add_quoted(std::string_view name, std::string* list) {
  list->append(list->empty() ? "\"" : ", \"").append(name).append("\"");
}

}  // namespace recurve
