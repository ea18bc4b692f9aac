#define PCRE2_CODE_UNIT_WIDTH 8
#include "server/text/pre_tokenizers/regex.h"

#include <gtest/gtest.h>
#include <pcre2.h>

#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "server/text/json/json_fields.h"
#include "server/text/work_limits.h"
#include "tests/support/amount.h"

namespace recurve::regex_test {

std::vector<Span> find(const Regex& regex, std::string_view text, bool invert = false) {
  std::vector<Span> spans;
  Regex::Search search;
  regex.find_on(text, /*last=*/true, invert, {}, &search,
                [&](const Span& span) { spans.push_back(span); });
  return spans;
}

std::string show(const std::string& pattern, const std::string& text, bool invert = false) {
  std::string out;
  for (const Span& span : find(Regex(pattern), text, invert)) {
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

TEST(Regex, RepetitionsThatCallOut) {
  const auto rewritten = oniguruma_to_interruptible_pcre2;
  EXPECT_EQ(rewritten("a?b{2,}(?:c)+d*?"), "a?b{2,}(?:c)+d*?");
  EXPECT_EQ(rewritten("xa*"), "x(?:(?:a{32768}(?C))*(?C)a{0,32767})");
  EXPECT_EQ(rewritten("x\u00e9+"), "x(?:\u00e9(?:\u00e9{32768}(?C))*(?C)\u00e9{0,32767})");
  EXPECT_EQ(rewritten(R"([\r\n]++)"), R"((?>[\r\n](?:[\r\n]{32768}(?C))*(?C)[\r\n]{0,32767}))");
}

// What PCRE2 finds in the whole of a text with the pattern as it stands, match by match.
std::vector<std::pair<size_t, size_t>> matches_of(const std::string& pattern,
                                                  const std::string& text) {
  const std::string translated = oniguruma_to_pcre2(pattern);
  int error = 0;
  size_t offset = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error, &offset, nullptr),
      pcre2_code_free);
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  std::vector<std::pair<size_t, size_t>> matches;
  for (size_t at = 0; at < text.size(); at = matches.back().second) {
    if (pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                    PCRE2_NO_UTF_CHECK, data.get(), nullptr) < 0) {
      break;
    }
    const size_t* ends = pcre2_get_ovector_pointer(data.get());
    matches.emplace_back(ends[0], ends[1]);
  }
  return matches;
}

// Windows, and repetitions that call out, change nothing: runs of megabytes, of blocks, and of a
// character more or less.
TEST(Regex, LongMatchesAreThoseOfTheWholeText) {
  const std::vector<std::string> patterns = {
      R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      R"(\s*[\r\n]++|\t+|a*+b|a+c| +(?= x)| +|-+|\p{L}+)"};
  std::mt19937 random(7);
  for (int run = 0; run < 6; ++run) {
    std::string text;
    const size_t bytes = testing::amount(6 << 20, 2 << 20);
    while (text.size() < bytes) {
      static const std::vector<std::string> kUnits = {" ", "\t", "\n", "a", "\u00e9", "-"};
      const size_t sizes[] = {1, 2, 32'767, 32'768, 32'769, 65'537, 1 << 20, 1 << 21};
      const std::string& unit = kUnits[random() % kUnits.size()];
      for (size_t i = sizes[random() % 8] + random() % 2; i > 0; --i) text += unit;
      if (random() % 3 == 0) text += random() % 2 == 0 ? "c" : " x";
    }
    for (const std::string& pattern : patterns) {
      std::vector<std::pair<size_t, size_t>> found;
      for (const Span& span : find(Regex(pattern), text)) {
        if (span.is_match) found.emplace_back(span.begin, span.end);
      }
      EXPECT_TRUE(found == matches_of(pattern, text)) << pattern << ", run " << run;
    }
  }
}

// A pattern that takes exponential time: the match limit ends it, and that is no way to cut a text.
TEST(Regex, GivingUpIsAnError) {
  const std::string text = "x" + std::string(60, 'a') + "\n";
  const Regex regex("x|(?:a|a|aa)+$b");
  std::string reason;
  try {
    find(regex, text, /*invert=*/true);
  } catch (const TextRefused& error) {
    reason = error.what();
  }
  EXPECT_EQ(
      reason,
      "the tokenizer's pattern \"x|(?:a|a|aa)+$b\" cannot split the text: match limit exceeded");
  EXPECT_EQ(find(regex, "xx").size(), 2u) << "the next text is not concerned";
}

// Deep recursion in the JIT's stack falls back to the interpreter, with the same result.
TEST(Regex, LongMatches) {
  const std::string text(200'000, 'a');
  EXPECT_EQ(find(Regex("(?:a|b)+"), text).size(), 1u);
  EXPECT_EQ(find(Regex("(?:ab?|b)+a"), text).size(), 1u);
  EXPECT_EQ(find(Regex("[ab]+|c"), std::string(20'000'000, 'a')).size(), 1u);
  EXPECT_THROW(find(Regex("(?:a|b)+"), std::string(2'000'000, 'a')), TextRefused);
}

}  // namespace recurve::regex_test
