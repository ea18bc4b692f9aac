#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/constraint/character_set.h"

namespace recurve {

// Characters that an escape may name.
inline constexpr std::string_view kRegexSpecial = "^$.*+?\\()[]{}|/-";

// Characters that JSON writes as themselves in a string; and those of ASCII.
CharacterSet plain_in_json();
CharacterSet plain_ascii();

// What stands for one character: itself, or a set that has a name.
struct RegexUnit {
  bool is_set = false;
  CharacterSet set = {};
  std::string_view bytes = {};  // of the character
  uint32_t character = 0;
};

// The smallest parts of a regular expression, one after another. What is none, or is not to be
// enforced, is refused by a ConstraintRefused with its byte.
class RegexReader {
 public:
  RegexReader(std::string_view text, bool in_json) : text_(text), in_json_(in_json) {}

 protected:
  [[noreturn]] void refuse(const std::string& why) const;
  bool ended() const { return at_ == text_.size(); }
  bool next_is(char c) const { return !ended() && text_[at_] == c; }
  char take();

  // A character, or what \d and the others name.
  RegexUnit read_unit();
  // Behind its [.
  CharacterSet read_class();
  // How often what stands in front may come; the second is empty: as often as it likes.
  std::pair<int, std::optional<int>> read_repeat();
  // In JSON, the library tells what may stand in a string apart for ASCII alone.
  void check_character(uint32_t c, bool in_class = false) const;

  const std::string_view text_;
  const bool in_json_;
  size_t at_ = 0;

 private:
  RegexUnit read_class_unit();
  RegexUnit read_escape();
  // Of a range that begins with that character; without one it ends there.
  uint32_t last_of_range(uint32_t first);
  int read_number();
};

}  // namespace recurve
