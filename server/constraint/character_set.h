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

 private:
  using Ranges = std::vector<std::pair<uint32_t, uint32_t>>;

  Ranges sorted() const;  // and not adjacent

  Ranges ranges_;
};

// The sets of \d, \w, \s, \D, \W and \S in ECMA-262.
CharacterSet characters_of_escape(char name);

}  // namespace recurve
