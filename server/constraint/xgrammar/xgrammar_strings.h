#pragma once
#include <cstdint>
#include <map>
#include <utility>

namespace xgrammar {
class GrammarBuilder;
}

namespace recurve {

// Strings of counted length, as rules of one of the library's grammars: deploy/xgrammar.sh has its
// reader of schemas take them from here. An escape is one character, as it is for who reads the
// string; characters that JSON writes as two escapes are not among them.
class CountedStrings {
 public:
  // Parts of the grammar: the rule of any string behind its opening quote, and an expression of
  // what may follow a string.
  struct Context {
    int32_t any_string;
    int32_t behind;
  };

  // The rule of strings of that many characters behind their opening quotes; `most` -1: any number.
  int32_t rule_of(xgrammar::GrammarBuilder* builder, int64_t least, int64_t most, Context context);

 private:
  int32_t one_by_one(xgrammar::GrammarBuilder* builder, int64_t least, int64_t most,
                     Context context);
  int32_t counted(xgrammar::GrammarBuilder* builder, int64_t least, int64_t most, Context context);

  // Rules that have been made: of a character and then that rule, or else of the end too.
  std::map<std::pair<int32_t, bool>, int32_t> rules_;
};

}  // namespace recurve
