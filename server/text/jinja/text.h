#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace recurve::jinja {

// Who wrote a byte: that decides whether it may be part of a control token.
enum class Origin : char {
  kTemplate,  // the template, or what the operator's files name (bos_token)
  kMessage,   // the caller of the template: messages and tools
  kMark,      // like kMessage, and to be found again in the output
};

// A string in UTF-8 that knows of each byte who wrote it. Positions that Python counts are
// characters (code points), as in Python.
struct Text {
  Text() = default;
  Text(std::string_view text, Origin origin)
      : bytes(text), origins(text.size(), static_cast<char>(origin)) {}

  void append(const Text& other);
  void append(std::string_view text, Origin origin);
  Text part(size_t begin, size_t end) const;  // in bytes, end excluded
  bool empty() const { return bytes.empty(); }
  Origin origin(size_t byte) const { return static_cast<Origin>(origins[byte]); }

  std::string bytes;    // valid UTF-8
  std::string origins;  // [byte of `bytes`]: an Origin
};

// A range of bytes.
struct ByteSpan {
  size_t begin;
  size_t end;
};

// One character of a text.
struct Character {
  int32_t code;
  size_t begin;  // in bytes
  size_t end;
};
std::vector<Character> characters(std::string_view utf8);
size_t count_characters(std::string_view utf8);
bool is_space(int32_t code);  // Python's str.isspace

// The methods of Python's str, of the same names. Case is mapped character by character: the few
// that become several (the German sharp s) or depend on their place (final sigma) do not.
enum class Side { kLeft = 1, kRight = 2, kBoth = 3 };
Text strip(const Text& text, Side side, const std::optional<std::string>& of = {});
std::vector<Text> split(const Text& text, const std::optional<std::string>& separator,
                        int64_t most);  // most < 0: no limit
std::vector<Text> rsplit(const Text& text, const std::optional<std::string>& separator,
                         int64_t most);
std::vector<Text> splitlines(const Text& text);
Text replace(const Text& text, std::string_view from, const Text& to, int64_t most);
Text upper(const Text& text);
Text lower(const Text& text);
Text title(const Text& text);
Text capitalize(const Text& text);

// Jinja's filters of these names.
Text title_filter(const Text& text);
Text indent(const Text& text, const Text& indention, bool first, bool blank);

}  // namespace recurve::jinja
