#pragma once
// Compiled with the sources of the library, in C++17.
#include <xgrammar/matcher.h>

#include <cstddef>
#include <string>

namespace recurve {

// Longer ones, of deep and ambiguous texts, are not returned.
inline constexpr size_t kMostPlaceBytes = 4096;

// The position of a matcher in its grammar, as bytes: matchers of one compiled grammar with equal
// positions allow the same tokens, even after different texts. Empty if it is too long.
std::string place_of(const xgrammar::GrammarMatcher& matcher);

}  // namespace recurve
