#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace recurve {

inline constexpr size_t kMostRegexBytes = 4096;
inline constexpr int kMostRegexRepeats = 256;        // in one {m,n}
inline constexpr int64_t kMostRegexPositions = 512;  // characters, with repeats expanded

// Lengths of texts in characters; `most` is empty if there is no maximum.
struct TextLengths {
  int64_t least = 0;
  std::optional<int64_t> most = 0;
};

// Regular expressions in UTF-8 with characters, classes, groups, |, ? * + {m,n}, \d \w \s and their
// opposites as in ECMA-262, and ^ and $ at the ends. They match the whole text. `.` is any
// character except a line break. All functions throw ConstraintRefused.

// An equivalent body of a rule in the library's EBNF.
std::string ebnf_of_regex(std::string_view regex);
// The same for a result of json_pattern(), without the texts that have a '<'. Refused if it allows
// no others.
std::string ebnf_of_json_pattern(std::string_view pattern);

enum class PatternUse {
  kWhole,     // the string matches
  kContains,  // a part of it does, as JSON Schema reads a pattern
};
// An equivalent regular expression of the library, for what stands between the quotes of a JSON
// string. Sets `lengths` to those of the strings that match, unless null.
std::string json_pattern(std::string_view regex, PatternUse use, TextLengths* lengths = nullptr);

}  // namespace recurve
