#include "server/text/regex.h"

#include <gtest/gtest.h>

#include "server/text/oniguruma.h"
#include "server/text/unsupported.h"
#include "server/text/work_limits.h"

namespace recurve::regex_test {

std::string show(const std::string& pattern, const std::string& text, bool invert = false) {
  std::string out;
  for (const Span& span : Regex(pattern).find(text, invert)) {
    out.push_back(span.is_match ? '[' : '(');
    out.append(text, span.begin, span.end - span.begin);
    out.push_back(span.is_match ? ']' : ')');
  }
  return out;
}

TEST(Regex, Spans) {
  EXPECT_EQ(show("b+", "abbcb"), "(a)[bb](c)[b]");
  EXPECT_EQ(show("b+", "abbcb", true), "[a](bb)[c](b)");
  EXPECT_EQ(show("x", ""), "");
  EXPECT_EQ(show("x", "abc"), "(abc)");
  EXPECT_EQ(show("a*", "baac"), "[](b)[aa](c)[]");
  EXPECT_EQ(show("", "\xC3\xA9z"), "[](\xC3\xA9)[](z)[]");
}

// Unicode's White_Space and nothing else; U+180E and U+200B are none.
TEST(Regex, Space) {
  const Regex space(R"(\s)");
  const Regex not_space(R"([^\s])");
  const Regex in_class(R"([\S])");
  for (const char* text : {" ", "\t", "\n", "\v", "\f", "\r", "\u0085", "\u00A0", "\u1680",
                           "\u2000", "\u200A", "\u2028", "\u2029", "\u202F", "\u205F", "\u3000"}) {
    EXPECT_TRUE(space.matches_all(text)) << text;
    EXPECT_FALSE(not_space.matches_all(text)) << text;
    EXPECT_FALSE(in_class.matches_all(text)) << text;
  }
  for (const char* text : {"a", "\u180E", "\u200B", "\uFEFF", "\u2060", "\U0001F999"}) {
    EXPECT_FALSE(space.matches_all(text)) << text;
    EXPECT_TRUE(not_space.matches_all(text)) << text;
    EXPECT_TRUE(in_class.matches_all(text)) << text;
  }
}

TEST(Regex, WhatTheEnginesReadDifferentlyIsRefused) {
  for (const char* pattern :
       {R"(\h)",     R"(\v)",          R"(\b)",     R"(\R)",         R"(\X)",
        R"(\K)",     R"(\G)",          R"((a)\1)",  R"((?<name>a))", R"((?i)a)",
        R"((?m:a))", R"((?x:a))",      R"((?#a))",  R"((*ACCEPT))",  R"([a[b]])",
        R"([a&&b])", R"([[:alpha:]])", R"([]a])",   R"([])",         R"(a{1,2}+)",
        R"(a{,3})",  R"([\W])",        R"(\xE9)",   R"(\x{})",       R"(\u12)",
        R"(\pL)",    R"(\p{L1})",      R"([\s-z])", R"([a-\s])",     R"(\)",
        R"([a)",     R"((a)",          R"(a)))",    R"(*)",          R"(\p{NoSuchScript})"}) {
    EXPECT_THROW(Regex{pattern}, UnsupportedTokenizer) << pattern;
  }
  EXPECT_THROW(Regex{std::string(20'000, 'a')}, UnsupportedTokenizer);
  EXPECT_THROW(Regex{std::string(5'000, '(') + std::string(5'000, ')')}, UnsupportedTokenizer);
}

TEST(Regex, Rewritten) {
  EXPECT_EQ(oniguruma_to_pcre2(R"(\p{Han}\p{^L}\P{Nd}\u00e9)"),
            R"(\p{sc:Han}\p{^L}\P{Nd}\x{00e9})");
  EXPECT_EQ(oniguruma_to_pcre2(R"(a{2,3}{x}[\r\n]++(?i:x)\.)"), R"(a{2,3}{x}[\r\n]++(?i:x)\.)");
}

// A pattern that takes exponential time: the match limit ends it, and that is no way to cut a text.
TEST(Regex, GivingUpIsAnError) {
  const std::string text = "x" + std::string(60, 'a') + "\n";
  const Regex regex("x|(?:a|a|aa)+$b");
  std::string reason;
  try {
    regex.find(text, /*invert=*/true);
  } catch (const TextRefused& error) {
    reason = error.what();
  }
  EXPECT_EQ(
      reason,
      "the tokenizer's pattern \"x|(?:a|a|aa)+$b\" cannot cut the text: match limit exceeded");
  EXPECT_EQ(regex.find("xx").size(), 2u) << "the next text is not concerned";
}

// Deep recursion in the JIT's stack falls back to the interpreter, with the same result.
TEST(Regex, LongMatches) {
  const std::string text(200'000, 'a');
  EXPECT_EQ(Regex("(?:a|b)+").find(text).size(), 1u);
  EXPECT_EQ(Regex("(?:ab?|b)+a").find(text).size(), 1u);
  EXPECT_EQ(Regex("[ab]+|c").find(std::string(20'000'000, 'a')).size(), 1u);
  EXPECT_THROW(Regex("(?:a|b)+").find(std::string(2'000'000, 'a')), TextRefused);
}

}  // namespace recurve::regex_test
