#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace xgrammar {
class GrammarBuilder;
}

namespace recurve {

// The beginning of the names of rules of a pattern: each leads to hundreds of others.
inline constexpr const char* kCountedPatternRule = "counted_pattern";

// Strings of limited length, as rules of a grammar of the library: deploy/xgrammar.sh patches its
// schema converter to call this. An escape counts as one character. Characters that JSON writes as
// two escapes are not allowed.
class CountedStrings {
 public:
  // Parts of the grammar: the rule of any string after its opening quote, and an expression of what
  // may follow a string.
  struct Context {
    int32_t any_string;
    int32_t after;
  };

  // The rule of strings of `least` to `most` characters after their opening quotes; `most` -1: no
  // maximum. `pattern`: which they match, a result of json_pattern(); null: none.
  int32_t rule_of(xgrammar::GrammarBuilder* builder, const std::string* pattern, int64_t least,
                  int64_t most, Context context);

 private:
  int32_t of_pattern(xgrammar::GrammarBuilder* builder, const std::string& pattern, int64_t least,
                     int64_t most, Context context);
  int32_t one_by_one(xgrammar::GrammarBuilder* builder, int64_t least, int64_t most,
                     Context context);
  int32_t counted(xgrammar::GrammarBuilder* builder, int64_t least, int64_t most, Context context);

  // Rules by (next rule, may end): one character and the next rule, or also the end.
  std::map<std::pair<int32_t, bool>, int32_t> rules_;
  // By pattern, least and most.
  std::map<std::tuple<std::string, int64_t, int64_t>, int32_t> pattern_rules_;
};

}  // namespace recurve
