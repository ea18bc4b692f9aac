#pragma once
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/constraint/constraint.h"

namespace recurve {

// Checks of a constraint before it is compiled: it must have a limited size, and nothing that the
// library would misread. The functions throw ConstraintRefused.

inline constexpr size_t kMostChoices = 4096;
inline constexpr int kMostNesting = 64;       // of brackets in expressions and grammars
inline constexpr int kMostJsonNesting = 256;  // of lists and objects

// Whether lists and objects in a JSON text are nested deeper than `levels`. For any text.
bool nests_deeper_than(std::string_view json, int levels);

// Parses JSON that is nested at most kMostJsonNesting levels deep, within the limits of WorkWatch.
// For invalid JSON it returns a discarded value, or throws the parser's exception.
nlohmann::ordered_json parse_watched(std::string_view json, bool throws = false);

// Checks an EBNF grammar: UTF-8, with limited size and nesting.
void check_grammar(std::string_view grammar);

// The unique strings of a JSON array of 1 to kMostChoices non-empty strings.
std::vector<std::string> read_choices(std::string_view json);

// The text, escaped for a string in EBNF.
std::string escaped_for_ebnf(std::string_view text);

}  // namespace recurve
