#include "server/constraint/xgrammar/xgrammar_strings.h"

#include <grammar_builder.h>

#include <algorithm>
#include <optional>
#include <vector>

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

}  // namespace

int32_t CountedStrings::rule_of(GrammarBuilder* builder, int64_t least, int64_t most,
                                Context context) {
  if (std::max(least, most) <= kOneByOne) return one_by_one(builder, least, most, context);
  if (least >= kOneByOne) return counted(builder, least, most, context);
  const int32_t short_ones = one_by_one(builder, least, kOneByOne - 1, context);
  const int32_t long_ones = counted(builder, kOneByOne, most, context);
  return builder->AddRuleWithHint("counted", builder->AddChoices({builder->AddRuleRef(short_ones),
                                                                  builder->AddRuleRef(long_ones)}));
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
