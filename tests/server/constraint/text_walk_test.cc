#include "server/constraint/text_walk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/constraint/constraint.h"
#include "server/constraint/regex_walk.h"

namespace recurve::text_walk_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal_of(const std::string& regex, bool in_json = false) {
  try {
    in_json ? json_pattern(regex) : ebnf_of_regex(regex);
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
  EXPECT_THAT(refusal_of("(?=a)b"), HasSubstr("only (?:...) is supported"));
  EXPECT_THAT(refusal_of("(?i)b"), HasSubstr("only (?:...) is supported"));
  EXPECT_THAT(refusal_of("(?<name>b)"), HasSubstr("only (?:...) is supported"));
  EXPECT_THAT(refusal_of("a\\b"), HasSubstr("\\b is not supported"));
  EXPECT_THAT(refusal_of("(a)\\1"), HasSubstr("\\1 is not supported"));
  EXPECT_THAT(refusal_of("\\p{L}"), HasSubstr("\\p is not supported"));
  EXPECT_THAT(refusal_of("a^b"), HasSubstr("^ is only supported at the start"));
  EXPECT_THAT(refusal_of("a$b"), HasSubstr("$ is only supported at the end"));
  EXPECT_THAT(refusal_of("(a$)|b"), HasSubstr("$ is only supported at the end"));
  EXPECT_THAT(refusal_of("a**"), HasSubstr("a repeat must not follow a repeat"));
  EXPECT_THAT(refusal_of("a{2}{3}"), HasSubstr("a repeat must not follow a repeat"));
  EXPECT_THAT(refusal_of("*a"), HasSubstr("follows nothing that it could repeat"));
  EXPECT_THAT(refusal_of("(a"), HasSubstr("unexpected end"));
  EXPECT_THAT(refusal_of("a)"), HasSubstr("unexpected )"));
  EXPECT_THAT(refusal_of("[a"), HasSubstr("unexpected end"));
  EXPECT_THAT(refusal_of("a{3,2}"), HasSubstr("m must not be greater than n"));
  EXPECT_THAT(refusal_of("a{x}"), HasSubstr("must be {m}"));
  EXPECT_THAT(refusal_of("a\\"), HasSubstr("unexpected end"));
}

TEST(RegexWalk, BoundsWhatItTakes) {
  EXPECT_THAT(refusal_of("a{257}"), HasSubstr("at most 256"));
  EXPECT_THAT(refusal_of("((a{100}){100}){100}"), HasSubstr("at most 512 characters"));
  EXPECT_THAT(refusal_of(std::string(5000, 'a')), HasSubstr("at most 4096 bytes, got 5000"));
  EXPECT_THAT(refusal_of(std::string(200, '(') + std::string(200, ')')),
              HasSubstr("64 levels deep"));
}

TEST(RegexWalk, InJsonRefusesWhatJsonWritesOtherwise) {
  EXPECT_EQ(refusal_of("[^\"]", true), "");
  EXPECT_EQ(refusal_of("\\s.", true), "");
  // Elsewhere U+0085 is a space, and U+0660 a digit.
  EXPECT_EQ(json_pattern("[^\\w\\s!-,:-@\\[-`{-~]+"), "[\\--/]+");
  EXPECT_EQ(json_pattern("[^\\d\\w \\-]").find_first_of("0aZ_ "), std::string::npos);
  EXPECT_EQ(json_pattern("[^a]"), "[^a]");
  EXPECT_EQ(ebnf_of_regex("[^\\d]"), "[^0-9]") << "outside of JSON, as written";
  // The library would go on with what JSON writes otherwise.
  EXPECT_THAT(refusal_of("[\"]", true), HasSubstr("no printable character"));
  EXPECT_THAT(refusal_of("[^\\s!-~]", true), HasSubstr("no printable character"));
  EXPECT_THAT(refusal_of("\\S", true), HasSubstr("write a class"));
  EXPECT_THAT(refusal_of("a\"b", true), HasSubstr("must be escaped in JSON"));
  EXPECT_THAT(refusal_of("a\\\\b", true), HasSubstr("must be escaped in JSON"));
  EXPECT_THAT(refusal_of("a\\nb", true), HasSubstr("must be escaped in JSON"));
  EXPECT_THAT(refusal_of("\xc3\xa9", true), HasSubstr("printable ASCII"));
}

TEST(RegexWalk, WritesRepeatsOut) {
  EXPECT_EQ(ebnf_of_regex("^ab?c$"), R"_("a"(""|"b")"c")_");
  EXPECT_EQ(ebnf_of_regex("(?:ab){2,3}?"), R"_(("a""b")("a""b")(""|("a""b")))_");
  EXPECT_EQ(ebnf_of_regex("a{2,}b*c+"), R"("a""a""a"*"b"*"c"+)");
  EXPECT_EQ(ebnf_of_regex("[a-c]{0}|\\.{1}"), R"(""|".")");
  EXPECT_EQ(ebnf_of_regex("\xc3\xa9{2}"), "\"\xc3\xa9\"\"\xc3\xa9\"");
  EXPECT_EQ(json_pattern("^ab?\\.$"), "a(|b)\\.");
}

TEST(RegexWalk, WritesClassesByTheirCharacters) {
  EXPECT_EQ(ebnf_of_regex("[\\^a]"), "[\\^a]");
  EXPECT_EQ(ebnf_of_regex("[^^]"), "[^\\^]");
  EXPECT_EQ(ebnf_of_regex("[b-da-c\\d-]"), "[\\-0-9a-d]");
  EXPECT_EQ(ebnf_of_regex("[\n\x01\x7f]"), "[\\u0001\\u000a\\u007f]");
  EXPECT_EQ(ebnf_of_regex("[\xf0\x9f\x98\x80-\xf0\x9f\x98\x82]"), "[\\U0001f600-\\U0001f602]");
  EXPECT_EQ(ebnf_of_regex("[\\s\\S]"), "[\\u0000-\\U0010ffff]");
  EXPECT_EQ(ebnf_of_regex("."), "[^\\u000a\\u000d\\u2028\\u2029]");
  EXPECT_THAT(refusal_of("[^\\d\\D]"), HasSubstr("this class has no characters"));
  EXPECT_THAT(refusal_of("[z-a]"), HasSubstr("not less than its first"));
  EXPECT_THAT(refusal_of("[a-\\d]"), HasSubstr("not less than its first"));
  EXPECT_THAT(refusal_of("[a"), HasSubstr("unexpected end"));
  EXPECT_THAT(refusal_of("\xff"), HasSubstr("not UTF-8"));
}

TEST(GrammarWalk, BoundsWhatItTakes) {
  EXPECT_NO_THROW(check_grammar("root ::= \"a\"{2,5} (\"b\" | \"c\")*"));
  EXPECT_THROW(check_grammar(""), ConstraintRefused);
  EXPECT_THROW(check_grammar("root ::= \"a\"{1,5000}"), ConstraintRefused);
  EXPECT_THROW(check_grammar("root ::= " + std::string(100, '(')), ConstraintRefused);
  EXPECT_THROW(check_grammar(std::string(300000, 'a')), ConstraintRefused);
}

// The library takes every digit behind a \x, and others two.
TEST(GrammarWalk, RefusesAnEscapeThatOthersReadOtherwise) {
  EXPECT_NO_THROW(check_grammar(R"(root ::= "\x0ag" [\xff] "\\x0abc" "\u0abc")"));
  EXPECT_THROW(check_grammar(R"(root ::= "\x0abc")"), ConstraintRefused);
  EXPECT_THROW(check_grammar(R"(root ::= [\x000])"), ConstraintRefused);
}

TEST(Choices, AreDifferentTexts) {
  EXPECT_THAT(read_choices(R"(["yes","no","yes"])"), ElementsAre("yes", "no"));
  for (const char* bad : {"[]", "{}", "[1]", "[\"\"]", "x"}) {
    EXPECT_THROW(read_choices(bad), ConstraintRefused) << bad;
  }
}

}  // namespace
}  // namespace recurve::text_walk_test
