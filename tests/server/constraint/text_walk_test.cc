#include "server/constraint/text_walk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/constraint/constraint.h"

namespace recurve::text_walk_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal_of(const std::string& regex, bool in_json = false) {
  try {
    enforceable_regex(regex, in_json);
    return "";
  } catch (const ConstraintRefused& refused) {
    return refused.what();
  }
}

TEST(RegexWalk, TakesWhatIsEnforced) {
  for (const char* regex : {"", "a", "abc|d", "^a+$", "(a|b)*c?", "(?:a|b){2,3}", "[a-z]+",
                            "[^\"\\\\]", "\\d{4}-\\d\\d", "[\\w.-]+@[\\w-]+\\.com", "a{3}", "a{3,}",
                            ".*?", "\\(\\)", "|a", "(a|)", "\\/"}) {
    EXPECT_EQ(refusal_of(regex), "") << regex;
  }
}

TEST(RegexWalk, RefusesByName) {
  EXPECT_THAT(refusal_of("(?=a)b"), HasSubstr("only (?:...) is known"));
  EXPECT_THAT(refusal_of("(?i)b"), HasSubstr("only (?:...) is known"));
  EXPECT_THAT(refusal_of("(?<name>b)"), HasSubstr("only (?:...) is known"));
  EXPECT_THAT(refusal_of("a\\b"), HasSubstr("\\b is not known"));
  EXPECT_THAT(refusal_of("(a)\\1"), HasSubstr("\\1 is not known"));
  EXPECT_THAT(refusal_of("\\p{L}"), HasSubstr("\\p is not known"));
  EXPECT_THAT(refusal_of("a^b"), HasSubstr("^ may only stand at the start"));
  EXPECT_THAT(refusal_of("a$b"), HasSubstr("$ may only stand at the end"));
  EXPECT_THAT(refusal_of("(a$)|b"), HasSubstr("$ may only stand at the end"));
  EXPECT_THAT(refusal_of("a**"), HasSubstr("a repeat may not follow a repeat"));
  EXPECT_THAT(refusal_of("a{2}{3}"), HasSubstr("a repeat may not follow a repeat"));
  EXPECT_THAT(refusal_of("*a"), HasSubstr("nothing in front of it"));
  EXPECT_THAT(refusal_of("(a"), HasSubstr("it ends too early"));
  EXPECT_THAT(refusal_of("a)"), HasSubstr("a ) closes nothing"));
  EXPECT_THAT(refusal_of("[a"), HasSubstr("it ends too early"));
  EXPECT_THAT(refusal_of("a{3,2}"), HasSubstr("m above n"));
  EXPECT_THAT(refusal_of("a{x}"), HasSubstr("must read {m}"));
  EXPECT_THAT(refusal_of("a\\"), HasSubstr("it ends too early"));
}

TEST(RegexWalk, BoundsWhatItTakes) {
  EXPECT_THAT(refusal_of("a{257}"), HasSubstr("at most 256 times"));
  EXPECT_THAT(refusal_of("((a{100}){100}){100}"), HasSubstr("at most 512 characters"));
  EXPECT_THAT(refusal_of(std::string(5000, 'a')), HasSubstr("at most 4096 bytes, got 5000"));
  EXPECT_THAT(refusal_of(std::string(200, '(') + std::string(200, ')')), HasSubstr("64 deep"));
}

TEST(RegexWalk, InJsonRefusesWhatJsonWritesOtherwise) {
  EXPECT_EQ(refusal_of("[^\"]", true), "");
  EXPECT_EQ(refusal_of("\\s.", true), "");
  // Elsewhere U+0085 is a space, and U+0660 a digit.
  EXPECT_EQ(enforceable_regex("[^\\w\\s!-,:-@\\[-`{-~]+", true), "[\\-\\.\\/]+");
  EXPECT_EQ(enforceable_regex("[^\\d\\w \\-]", true).find_first_of("0aZ_ "), std::string::npos);
  EXPECT_EQ(enforceable_regex("[^a]", true), "[^a]");
  EXPECT_EQ(enforceable_regex("[^\\s]"), "[^\\s]") << "outside of JSON, as written";
  EXPECT_THAT(refusal_of("[^\\s!-~]", true), HasSubstr("no printable character"));
  EXPECT_THAT(refusal_of("\\S", true), HasSubstr("write a class"));
  EXPECT_THAT(refusal_of("a\"b", true), HasSubstr("written otherwise in JSON"));
  EXPECT_THAT(refusal_of("a\\\\b", true), HasSubstr("written otherwise in JSON"));
  EXPECT_THAT(refusal_of("a\\nb", true), HasSubstr("written otherwise in JSON"));
  EXPECT_THAT(refusal_of("\xc3\xa9", true), HasSubstr("printable ASCII"));
}

TEST(RegexWalk, WritesRepeatsOut) {
  EXPECT_EQ(enforceable_regex("^ab?c$"), "a(|b)c");
  EXPECT_EQ(enforceable_regex("(?:ab){2,3}?"), "(ab)(ab)(|(ab))");
  EXPECT_EQ(enforceable_regex("a{2,}b*c+"), "aaa*b*c+");
  EXPECT_EQ(enforceable_regex("[a-c]{0}|\\.{1}"), "|\\.");
  EXPECT_EQ(enforceable_regex("\xc3\xa9{2}"), "\xc3\xa9\xc3\xa9");
}

TEST(GrammarWalk, BoundsWhatItTakes) {
  EXPECT_NO_THROW(check_grammar("root ::= \"a\"{2,5} (\"b\" | \"c\")*"));
  EXPECT_THROW(check_grammar(""), ConstraintRefused);
  EXPECT_THROW(check_grammar("root ::= \"a\"{1,5000}"), ConstraintRefused);
  EXPECT_THROW(check_grammar("root ::= " + std::string(100, '(')), ConstraintRefused);
  EXPECT_THROW(check_grammar(std::string(300000, 'a')), ConstraintRefused);
}

TEST(Choices, AreDifferentTexts) {
  EXPECT_THAT(read_choices(R"(["yes","no","yes"])"), ElementsAre("yes", "no"));
  for (const char* bad : {"[]", "{}", "[1]", "[\"\"]", "x"}) {
    EXPECT_THROW(read_choices(bad), ConstraintRefused) << bad;
  }
}

}  // namespace
}  // namespace recurve::text_walk_test
