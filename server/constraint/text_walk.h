#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace recurve {

// What is looked at of a constraint before it is compiled: that it is of bounded size, and says
// nothing that the library would read otherwise than it is written. Each throws ConstraintRefused.

inline constexpr size_t kMostConstraintBytes = size_t{256} << 10;
inline constexpr size_t kMostRegexBytes = 4096;
inline constexpr int kMostRegexRepeats = 256;        // in one {m,n}
inline constexpr int64_t kMostRegexPositions = 512;  // characters, with repeats written out
inline constexpr size_t kMostChoices = 4096;
inline constexpr int kMostJsonNesting = 256;  // of lists and objects

// Whether lists and objects in a JSON text stand deeper than that in each other. Of any text.
bool nests_deeper_than(std::string_view json, int levels);

// How many characters texts have; `most` empty: any number.
struct TextLengths {
  int64_t least = 0;
  std::optional<int64_t> most = 0;
};

// A regular expression: characters, classes, groups, |, ? * + {m,n}, \d \w \s and their opposites;
// ^ and $ only at its ends. It is always the whole text that matches. `in_json`: of a string in
// JSON, where it may not ask for characters that JSON writes otherwise. Returned is one that means
// the same to the library. `lengths`: of the texts that match.
std::string enforceable_regex(std::string_view regex, bool in_json = false,
                              TextLengths* lengths = nullptr);

// An EBNF grammar: UTF-8, of bounded size and nesting.
void check_grammar(std::string_view grammar);

// A JSON array of 1 to kMostChoices different strings that are not empty.
std::vector<std::string> read_choices(std::string_view json);

// Between the quotes of a string in EBNF.
std::string escaped_for_ebnf(std::string_view text);

}  // namespace recurve
