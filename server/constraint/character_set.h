#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace recurve {

// A set of characters, as a class of a regular expression has them.
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

  // Between brackets, the same for the library's regular expressions and for its EBNF. Not of an
  // empty set. Only EBNF takes the set of all characters.
  std::string written() const;

 private:
  using Ranges = std::vector<std::pair<uint32_t, uint32_t>>;

  Ranges sorted() const;  // which do not touch

  Ranges ranges_;
};

// What \d, \w and \s name.
CharacterSet characters_of_escape(char name);

}  // namespace recurve
