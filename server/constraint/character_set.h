#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace recurve {

// A set of characters, like a class of a regular expression.
class CharacterSet {
 public:
  static constexpr uint32_t kLast = 0x10ffff;

  CharacterSet() = default;
  CharacterSet(uint32_t first, uint32_t last) { add(first, last); }

  void add(uint32_t first, uint32_t last) { ranges_.emplace_back(first, last); }
  void add(const CharacterSet& other);

  bool empty() const { return ranges_.empty(); }
  CharacterSet complement() const;
  CharacterSet within(const CharacterSet& other) const;

  // The class in brackets, for the library's regular expressions and its EBNF. The set must not be
  // empty; the set of all characters is for EBNF only.
  std::string to_class() const;

  using Ranges = std::vector<std::pair<uint32_t, uint32_t>>;
  // In order, first and last of each; not adjacent.
  Ranges sorted() const;

 private:
  Ranges ranges_;
};

// The characters that need no escape in a string of JSON.
CharacterSet plain_in_json();
// The letters behind the backslash of the short escapes of those in the set that have one, and the
// characters of such letters. Other control characters are not generated.
CharacterSet json_escapes_of(const CharacterSet& set);
CharacterSet characters_of_json_escapes(const CharacterSet& letters);
// Both: all that are generated in a string.
CharacterSet json_characters();

// The sets of \d, \w, \s, \D, \W and \S in ECMA-262.
CharacterSet characters_of_escape(char name);

}  // namespace recurve
