#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "server/constraint/character_set.h"
#include "server/constraint/regex_walk.h"

namespace recurve {

inline constexpr size_t kMostPatternStates = 4096;

// A deterministic automaton for the strings that match a pattern and whose lengths are bounded.
struct PatternAutomaton {
  struct Edge {
    size_t characters;  // index of `sets`
    size_t to;          // index of `states`
  };
  struct State {
    bool may_end = false;
    std::vector<Edge> edges = {};  // with no common characters
  };
  std::vector<CharacterSet> sets = {};
  std::vector<State> states = {};  // a string can be completed from each; empty: there is no string
  size_t start = 0;
};

// `pattern`: a result of json_pattern(). `lengths`: of the strings. `allowed`: their characters.
// Throws ConstraintRefused for an automaton of more than kMostPatternStates.
PatternAutomaton counted_pattern(std::string_view pattern, const TextLengths& lengths,
                                 const CharacterSet& allowed);

// The automaton as rules of the library's EBNF, the first one `root`.
std::string ebnf_of(const PatternAutomaton& automaton);

}  // namespace recurve
