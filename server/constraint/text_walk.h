#pragma once
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/constraint/constraint.h"

namespace recurve {

// What is looked at of a constraint before it is compiled: that it is of bounded size, and says
// nothing that the library would read otherwise than it is written. Each throws ConstraintRefused.

inline constexpr size_t kMostChoices = 4096;
inline constexpr int kMostNesting = 64;       // of brackets in expressions and grammars
inline constexpr int kMostJsonNesting = 256;  // of lists and objects

// Whether lists and objects in a JSON text stand deeper than that in each other. Of any text.
bool nests_deeper_than(std::string_view json, int levels);

// The value of a text that nests no deeper than kMostJsonNesting. Where it is no JSON, it is
// discarded, or the parser's exception is thrown.
nlohmann::ordered_json parse_watched(std::string_view json, bool throws = false);

// An EBNF grammar: UTF-8, of bounded size and nesting.
void check_grammar(std::string_view grammar);

// A JSON array of 1 to kMostChoices different strings that are not empty.
std::vector<std::string> read_choices(std::string_view json);

// Between the quotes of a string in EBNF.
std::string escaped_for_ebnf(std::string_view text);

}  // namespace recurve
