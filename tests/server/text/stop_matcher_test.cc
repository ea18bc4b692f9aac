#include "server/text/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>
#include <stdexcept>

namespace recurve::stop_matcher_test {

using Strings = std::vector<std::string>;

struct Outcome {
  std::string text;
  std::optional<size_t> match;
  bool operator==(const Outcome&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Outcome& o) {
  return out << '"' << o.text << "\" match " << (o.match ? static_cast<int>(*o.match) : -1);
}

// The definition: the first end at which a stop string ends, of those the longest.
Outcome naive(const Strings& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<size_t> best;
    for (size_t i = 0; i < stops.size(); ++i) {
      const bool here = std::string_view(text).substr(0, end).ends_with(stops[i]);
      if (here && (!best || stops[i].size() > stops[*best].size())) best = i;
    }
    if (best) return {text.substr(0, end - stops[*best].size()), best};
  }
  return {text, std::nullopt};
}

// The longest suffix of `text` that begins a stop string.
size_t naive_held(const Strings& stops, const std::string& text) {
  for (size_t n = text.size(); n > 0; --n) {
    for (const std::string& stop : stops) {
      if (n < stop.size() && text.ends_with(stop.substr(0, n))) return n;
    }
  }
  return 0;
}

Outcome feed_all(const Strings& stops, const Strings& parts) {
  StopMatcher matcher(stops);
  Outcome outcome;
  std::string fed;
  for (const std::string& part : parts) {
    outcome.text += matcher.feed(part);
    fed += part;
    if (matcher.matched()) continue;
    EXPECT_EQ(outcome.text.size(), fed.size() - naive_held(stops, fed)) << fed;
  }
  outcome.text += matcher.finish();
  outcome.match = matcher.match();
  return outcome;
}

void check_every_cut(const Strings& stops, const std::string& text) {
  const Outcome wanted = naive(stops, text);
  for (size_t i = 0; i <= text.size(); ++i) {
    for (size_t j = i; j <= text.size(); ++j) {
      EXPECT_EQ(feed_all(stops, {text.substr(0, i), text.substr(i, j - i), text.substr(j)}), wanted)
          << text << " cut at " << i << " and " << j;
    }
  }
  Strings bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  EXPECT_EQ(feed_all(stops, bytes), wanted) << text;
}

TEST(StopMatcher, HandComputed) {
  EXPECT_EQ(feed_all({"END"}, {"the E", "N", "D of it"}), (Outcome{"the ", 0}));
  EXPECT_EQ(feed_all({"END"}, {"the E", "N", "N"}), (Outcome{"the ENN", std::nullopt}));
  EXPECT_EQ(feed_all({"END"}, {"the EN"}), (Outcome{"the EN", std::nullopt}));
  EXPECT_EQ(feed_all({"abc", "b"}, {"abc"}), (Outcome{"a", 1}));   // ends first
  EXPECT_EQ(feed_all({"c", "abc"}, {"xabc"}), (Outcome{"x", 1}));  // ends together: the longest
  EXPECT_EQ(feed_all({"aab"}, {"aaaab"}), (Outcome{"aa", 0}));
  EXPECT_EQ(feed_all({}, {"any", "thing"}), (Outcome{"anything", std::nullopt}));
  EXPECT_EQ(feed_all({"\n\n"}, {"a\n", "b\n", "\nc"}), (Outcome{"a\nb", 0}));
}

TEST(StopMatcher, NothingAfterAMatch) {
  StopMatcher matcher({"stop"});
  EXPECT_EQ(matcher.feed("a stop b"), "a ");
  EXPECT_TRUE(matcher.matched());
  EXPECT_EQ(matcher.matched_text(), "stop");
  EXPECT_EQ(matcher.feed("more stop"), "");
  EXPECT_EQ(matcher.finish(), "");
  EXPECT_EQ(matcher.match(), 0u);
}

TEST(StopMatcher, EveryCut) {
  check_every_cut({"abab", "ba"}, "aabbabab");
  check_every_cut({"aaa"}, "aabaabaaab");
  check_every_cut({"ab", "abc", "bcd"}, "xxabcd");
  check_every_cut({"abacab"}, "abacabacab");
  check_every_cut({"\n\nUser:", "\n\n\n", "###"}, "Hi.\n\nUse\n\n##\n\nUser: x");
  check_every_cut({"é"}, "a\xC3\xAA\xC3\xA9z");
}

TEST(StopMatcher, RandomAgainstNaive) {
  std::mt19937 random(7);
  const auto word = [&](size_t most) {
    std::string text(random() % most, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int run = 0; run < 300; ++run) {
    Strings stops(1 + random() % 4);
    for (std::string& stop : stops) stop = word(8).append("a");
    check_every_cut(stops, word(16));
  }
}

TEST(StopMatcher, Limits) {
  EXPECT_NO_THROW(StopMatcher(Strings(16, std::string(1024, 'x'))));
  EXPECT_THROW(StopMatcher(Strings(17, "x")), std::invalid_argument);
  EXPECT_THROW(StopMatcher({std::string(1025, 'x')}), std::invalid_argument);
  EXPECT_THROW(StopMatcher({""}), std::invalid_argument);
}

// 1 MB against the worst for a search that starts anew at each byte: 10^9 steps a stop string.
TEST(StopMatcher, LinearTime) {
  StopMatcher matcher(Strings(16, std::string(1023, 'a') + "b"));
  size_t out = 0;
  for (int i = 0; i < 1000; ++i) out += matcher.feed(std::string(1000, 'a')).size();
  EXPECT_EQ(out, 1000u * 1000u - 1023u);
  EXPECT_EQ(matcher.finish().size(), 1023u);
}

}  // namespace recurve::stop_matcher_test
