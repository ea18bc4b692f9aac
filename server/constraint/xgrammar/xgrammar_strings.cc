#include "server/constraint/xgrammar/xgrammar_strings.h"

#include <grammar_builder.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <vector>

#include "server/constraint/character_set.h"
#include "server/constraint/pattern_automaton.h"

namespace recurve {
namespace {

using xgrammar::GrammarBuilder;

// Up to this length, each character has a rule. Longer strings are counted by the library, for
// which this many characters are the lookahead when it computes masks.
constexpr int64_t kOneByOne = 128;

// The ways to write one character. They are repeated in every rule, because the library computes
// what follows a reference to another rule only during the answer, token by token.
std::vector<std::vector<int32_t>> ways_to_write_one(GrammarBuilder* builder) {
  const auto any_of = [&](const std::vector<GrammarBuilder::CharacterClassElement>& ranges) {
    return builder->AddCharacterClass(ranges);
  };
  const int32_t plain = builder->AddCharacterClass({{0, 0x1f}, {'"', '"'}, {'\\', '\\'}}, true);
  const int32_t short_escape = any_of({{'"', '"'},
                                       {'\\', '\\'},
                                       {'/', '/'},
                                       {'b', 'b'},
                                       {'f', 'f'},
                                       {'n', 'n'},
                                       {'r', 'r'},
                                       {'t', 't'}});
  const int32_t digit = any_of({{'0', '9'}, {'A', 'F'}, {'a', 'f'}});
  const int32_t no_d = any_of({{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}});
  const int32_t d = any_of({{'D', 'D'}, {'d', 'd'}}), no_surrogate = any_of({{'0', '7'}});
  const int32_t escape = builder->AddByteString("\\"), unicode = builder->AddByteString("\\u");
  return {{plain},
          {escape, short_escape},
          {unicode, no_d, digit, digit, digit},
          {unicode, d, no_surrogate, digit, digit}};
}

// One character and then the rule `rest`, or the closing quote if the string may end.
int32_t add_rule(GrammarBuilder* builder, std::optional<int32_t> rest, bool may_end) {
  std::vector<int32_t> choices;
  if (may_end) choices.push_back(builder->AddByteString("\""));
  if (rest) {
    for (std::vector<int32_t> way : ways_to_write_one(builder)) {
      if (*rest >= 0) way.push_back(builder->AddRuleRef(*rest));
      choices.push_back(builder->AddSequence(way));
    }
  }
  return builder->AddRuleWithHint("counted", builder->AddChoices(choices));
}

int32_t class_of(GrammarBuilder* builder, const CharacterSet& set) {
  std::vector<GrammarBuilder::CharacterClassElement> ranges;
  for (const auto& [first, last] : set.sorted()) {
    ranges.push_back({static_cast<int32_t>(first), static_cast<int32_t>(last)});
  }
  return builder->AddCharacterClass(ranges);
}

// A state of an automaton: the closing quote if the string may end, or a character and then the
// rule of the next state.
int32_t body_of(GrammarBuilder* builder, const PatternAutomaton& automaton,
                const PatternAutomaton::State& state, const std::vector<int32_t>& rules) {
  std::vector<int32_t> choices;
  if (state.may_end) choices.push_back(builder->AddByteString("\""));
  for (const PatternAutomaton::Edge& edge : state.edges) {
    const CharacterSet& set = automaton.sets[edge.characters];
    const CharacterSet plain = set.within(plain_in_json()), escapes = json_escapes_of(set);
    const int32_t next = builder->AddRuleRef(rules[edge.to]);
    if (!plain.empty()) choices.push_back(builder->AddSequence({class_of(builder, plain), next}));
    if (!escapes.empty()) {
      choices.push_back(
          builder->AddSequence({builder->AddByteString("\\"), class_of(builder, escapes), next}));
    }
  }
  return builder->AddChoices(choices);
}

}  // namespace

int32_t CountedStrings::rule_of(GrammarBuilder* builder, const std::string* pattern, int64_t least,
                                int64_t most, Context context) {
  if (pattern != nullptr) return of_pattern(builder, *pattern, least, most, context);
  if (std::max(least, most) <= kOneByOne) return one_by_one(builder, least, most, context);
  if (least >= kOneByOne) return counted(builder, least, most, context);
  const int32_t short_ones = one_by_one(builder, least, kOneByOne - 1, context);
  const int32_t long_ones = counted(builder, kOneByOne, most, context);
  return builder->AddRuleWithHint("counted", builder->AddChoices({builder->AddRuleRef(short_ones),
                                                                  builder->AddRuleRef(long_ones)}));
}

int32_t CountedStrings::of_pattern(GrammarBuilder* builder, const std::string& pattern,
                                   int64_t least, int64_t most, Context context) {
  const auto [rule, is_new] = pattern_rules_.try_emplace({pattern, least, most}, 0);
  if (!is_new) return rule->second;
  TextLengths lengths{least, {}};
  if (most != -1) lengths.most = most;
  const PatternAutomaton automaton = counted_pattern(pattern, lengths, json_characters());
  if (automaton.states.empty()) throw std::runtime_error("no string matches");
  std::vector<int32_t> rules;
  for (size_t state = 0; state < automaton.states.size(); ++state) {
    rules.push_back(builder->AddEmptyRuleWithHint(kCountedPatternRule));
    builder->UpdateLookaheadAssertion(rules.back(), context.after);
  }
  for (size_t state = 0; state < automaton.states.size(); ++state) {
    builder->UpdateRuleBody(rules[state],
                            body_of(builder, automaton, automaton.states[state], rules));
  }
  return rule->second = rules[automaton.start];
}

int32_t CountedStrings::one_by_one(GrammarBuilder* builder, int64_t least, int64_t most,
                                   Context context) {
  std::optional<int32_t> rest;
  const auto prepend = [&](bool may_end) {
    const auto [rule, is_new] = rules_.try_emplace({rest.value_or(-1), may_end}, 0);
    if (is_new) {
      rule->second = add_rule(builder, rest, may_end);
      builder->UpdateLookaheadAssertion(rule->second, context.after);
    }
    rest = rule->second;
  };
  if (most == -1) rest = context.any_string;
  for (int64_t count = least; count <= most; ++count) prepend(/*may_end=*/true);
  for (int64_t count = 0; count < least; ++count) prepend(/*may_end=*/false);
  return *rest;
}

int32_t CountedStrings::counted(GrammarBuilder* builder, int64_t least, int64_t most,
                                Context context) {
  const int32_t one = add_rule(builder, /*rest=*/-1, /*may_end=*/false);
  const std::vector<int32_t> next(kOneByOne, builder->AddRuleRef(one));
  builder->UpdateLookaheadAssertion(one, builder->AddSequence(next));
  const int64_t longest = most == -1 ? least : most;
  const int32_t first = builder->AddRuleWithHint(
      "counted", builder->AddRepeat(one, static_cast<int32_t>(least - kOneByOne),
                                    static_cast<int32_t>(longest - kOneByOne)));
  const int32_t last = one_by_one(builder, kOneByOne, most == -1 ? -1 : kOneByOne, context);
  return builder->AddRuleWithHint(
      "counted", builder->AddSequence({builder->AddRuleRef(first), builder->AddRuleRef(last)}));
}

}  // namespace recurve
