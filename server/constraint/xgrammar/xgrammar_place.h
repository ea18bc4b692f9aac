#pragma once
// Like xgrammar_library.cc, of the library: compiled with its sources, in C++17.
#include <xgrammar/matcher.h>

#include <cstddef>
#include <string>

namespace recurve {

// Longer ones are not told: deep and ambiguous texts.
inline constexpr size_t kMostPlaceBytes = 4096;

// Where a text stands in its grammar, as bytes: matchers of one compiled grammar for which they are
// the same go on with the same tokens, whatever their texts were. Empty: it is not told.
std::string place_of(const xgrammar::GrammarMatcher& matcher);

}  // namespace recurve
