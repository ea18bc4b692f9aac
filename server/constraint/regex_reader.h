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
  // `rewritten`: the text is a result of json_pattern().
  RegexReader(std::string_view text, bool in_json, bool rewritten = false)
      : text_(text), in_json_(in_json), rewritten_(rewritten) {}

 protected:
  [[noreturn]] void refuse(const std::string& why) const;

  bool ended() const { return at_ == text_.size(); }
  bool next_is(char c) const { return !ended() && text_[at_] == c; }
  char take();

  // A literal, or an escape.
  RegexUnit read_unit();
  // A class, after its [.
  CharacterSet read_class();
  // The characters of an escape of JSON in a rewritten text, after its backslash.
  CharacterSet read_json_escape();
  // The bounds of a repeat, {1, 1} if there is none; the second is empty if there is no upper
  // bound.
  std::pair<int, std::optional<int>> read_repeat();

  const std::string_view text_;
  const bool in_json_, rewritten_;
  size_t at_ = 0;

 private:
  RegexUnit read_class_unit();
  RegexUnit read_escape();
  RegexUnit read_code(size_t digits);
  uint32_t last_of_range(uint32_t first);
  int read_number();
};

}  // namespace recurve
