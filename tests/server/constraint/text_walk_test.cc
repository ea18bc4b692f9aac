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
    in_json ? json_pattern(regex, PatternUse::kContains) : ebnf_of_regex(regex);
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
  EXPECT_THAT(refusal_of("(a$)b"), HasSubstr("$ is only supported at the end"));
  EXPECT_THAT(refusal_of("\\Ba"), HasSubstr("\\B is not supported: write the characters"));
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

TEST(RegexWalk, InJsonWritesWhatJsonEscapes) {
  const auto whole = [](const char* regex) { return json_pattern(regex, PatternUse::kWhole); };
  EXPECT_EQ(whole("[^a]"), R"(([^\u0000-\u001f"\\a]|\\["\\bfnrt]))");
  EXPECT_EQ(whole("a\"\\\\\\n"), R"(a(\\["])(\\[\\])(\\[n]))");
  EXPECT_EQ(whole("[a-c\"]"), R"(([a-c]|\\["]))");
  EXPECT_EQ(whole("\xc3\xa9"), "[\\u00e9]");
  EXPECT_EQ(whole("\\d[^\\D5]"), "[0-9][0-46-9]");
  EXPECT_THAT(refusal_of("[\x01]", true), HasSubstr("no character that JSON writes as itself"));
  // The same characters, where a parameter is not JSON.
  for (const char* regex : {"[^a]", "a\"\\\\\\n", "[a-c\"]"}) {
    EXPECT_EQ(ebnf_of_json_pattern(whole(regex)).find("bfnrt"), std::string::npos) << regex;
  }
  EXPECT_EQ(ebnf_of_json_pattern(whole("a\"")), R"("a"(["]))");
}

// As JSON Schema reads a pattern: ... is what may stand around a match.
TEST(RegexWalk, ContainsItUnlessItIsAnchored) {
  const auto contains = [](const char* regex) {
    const std::string any = R"(([^\u0000-\u001f"\\]|\\["\\bfnrt])*)";
    std::string text = json_pattern(regex, PatternUse::kContains);
    for (size_t at = 0; (at = text.find(any, at)) != std::string::npos;) {
      text.replace(at, any.size(), "...");
    }
    return text;
  };
  EXPECT_EQ(contains("a"), "...a...");
  EXPECT_EQ(contains("^a"), "a...");
  EXPECT_EQ(contains("a$"), "...a");
  EXPECT_EQ(contains("^a$"), "a");
  EXPECT_EQ(contains("^$"), "");
  EXPECT_EQ(contains(""), "......");
  EXPECT_EQ(contains("^a|b$|c"), "a...|...b|...c...");
  EXPECT_EQ(contains("^(a|b)$"), "(a|b)");
  EXPECT_EQ(contains("(^a$)|(^b)|(c)"), "(a)|(b...)|(...c...)");
  EXPECT_EQ(contains("(?:^a|b)c(d|e$)"), "(a|...b)c(d...|e)");
  EXPECT_EQ(contains("(a)+"), "...(a)+...");
  EXPECT_EQ(contains("((^a)|[)(]b)$"), "((a)|...[()]b)");
  TextLengths lengths;
  json_pattern("^a{2,3}", PatternUse::kContains, &lengths);
  EXPECT_TRUE(lengths.least == 2 && !lengths.most);
  for (const char* regex : {"(^a)+", "(^a){2}", "a(^b)", "(a$)b", "(a$)?", "^^a", "a$$", "(a^)"}) {
    EXPECT_THAT(refusal_of(regex, true), HasSubstr("is only supported at the")) << regex;
  }
}

TEST(RegexWalk, WritesRepeatsOut) {
  EXPECT_EQ(ebnf_of_regex("^ab?c$"), R"_("a"(""|"b")"c")_");
  EXPECT_EQ(ebnf_of_regex("(?:ab){2,3}?"), R"_(("a""b")("a""b")(""|("a""b")))_");
  EXPECT_EQ(ebnf_of_regex("a{2,}b*c+"), R"("a""a""a"*"b"*"c"+)");
  EXPECT_EQ(ebnf_of_regex("[a-c]{0}|\\.{1}"), R"(""|".")");
  EXPECT_EQ(ebnf_of_regex("\xc3\xa9{2}"), "\"\xc3\xa9\"\"\xc3\xa9\"");
  EXPECT_EQ(json_pattern("^ab?\\.$", PatternUse::kContains), "a(|b)\\.");
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
