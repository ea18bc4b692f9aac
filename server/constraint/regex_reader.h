#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/constraint/character_set.h"

namespace recurve {

// Characters that can be escaped.
inline constexpr std::string_view kRegexSpecial = "^$.*+?\\()[]{}|/-";

// Characters that need no escape in a JSON string; and those of them in printable ASCII.
CharacterSet plain_in_json();
CharacterSet plain_ascii();

// One character of a regular expression: a literal, or a set like \d.
struct RegexUnit {
  bool is_set = false;
  CharacterSet set = {};
  std::string_view bytes = {};  // of the literal
  uint32_t character = 0;
};

// Parses the elements of a regular expression. Throws ConstraintRefused, with the position, for
// what is invalid or not supported.
class RegexReader {
 public:
  RegexReader(std::string_view text, bool in_json) : text_(text), in_json_(in_json) {}

 protected:
  [[noreturn]] void refuse(const std::string& why) const;
  bool ended() const { return at_ == text_.size(); }
  bool next_is(char c) const { return !ended() && text_[at_] == c; }
  char take();

  // A literal, or an escape.
  RegexUnit read_unit();
  // A class, after its [.
  CharacterSet read_class();
  // The bounds of a repeat, {1, 1} if there is none; the second is empty if there is no upper
  // bound.
  std::pair<int, std::optional<int>> read_repeat();
  // Refuses characters that the library does not handle in patterns of JSON strings.
  void check_character(uint32_t c, bool in_class = false) const;

  const std::string_view text_;
  const bool in_json_;
  size_t at_ = 0;

 private:
  RegexUnit read_class_unit();
  RegexUnit read_escape();
  // The last character of a range that begins with `first`; `first` if there is no range.
  uint32_t last_of_range(uint32_t first);
  int read_number();
};

}  // namespace recurve
