#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace recurve {

inline constexpr size_t kMostRegexBytes = 4096;
inline constexpr int kMostRegexRepeats = 256;        // in one {m,n}
inline constexpr int64_t kMostRegexPositions = 512;  // characters, with repeats written out

// How many characters texts have; `most` empty: any number.
struct TextLengths {
  int64_t least = 0;
  std::optional<int64_t> most = 0;
};

// A regular expression of UTF-8: characters, classes, groups, |, ? * + {m,n}, \d \w \s and their
// opposites; ^ and $ only at its ends. It is always the whole text that matches. `.` is any
// character but a line break. Both throw ConstraintRefused.

// What means the same in the library's EBNF, as the body of a rule.
std::string ebnf_of_regex(std::string_view regex);

// Of a string in JSON, where it may not ask for characters that JSON writes otherwise: what means
// the same in the library's regular expressions. `lengths`: of the texts that match.
std::string json_pattern(std::string_view regex, TextLengths* lengths = nullptr);

}  // namespace recurve
