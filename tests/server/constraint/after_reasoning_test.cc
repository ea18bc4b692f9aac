// A constraint that begins after the reasoning, over a vocabulary in which tokens hold parts of the
// tags.
#include "server/constraint/after_reasoning.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/server/constraint/byte_vocabulary.h"
#include "tests/server/constraint/with_library.h"

namespace recurve::after_reasoning_test {
namespace {

using testing::ids_of;

const TokenTexts& vocabulary() {
  static const TokenTexts all = [] {
    TokenTexts texts = testing::byte_vocabulary();
    for (const char* more : {"<think>", "</think>", "</th", "ink>", ">\n\n", ">\n", "\n", "\n{\"",
                             "><", "think", "</", ">{\"", "\n\n\n"}) {
      texts.emplace_back(more);
    }
    return texts;
  }();
  return all;
}

class AfterReasoningTest : public testing::WithConstraintLibrary {
 protected:
  static std::shared_ptr<const Constraint> constraint(bool inside, size_t written = 0,
                                                      int32_t control = -1) {
    static const auto library = make_constraint_library(vocabulary());
    const auto inner = library->compile(
        {ConstraintText::Form::kJsonSchema,
         R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})",
         /*any_whitespace=*/true},
        {});
    const auto tokens = std::make_shared<const ReasoningTokens>(
        ReasoningTokens::Tags{
            .open = "<think>", .close = "</think>", .close_id = control, .most_breaks = 2},
        [](int32_t id) -> std::string_view { return vocabulary()[static_cast<size_t>(id)]; },
        static_cast<int32_t>(vocabulary().size()));
    return after_reasoning(inner, tokens, inside, written);
  }
};

TEST_F(AfterReasoningTest, TheAnswerIsConstrainedBehindIt) {
  const auto open = constraint(/*inside=*/true);
  for (const char* yes : {"hm</think>{\"a\":1}", "</think>\n\n{\"a\":1}",
                          "{\n</th</think>\n{\"a\":1}", "<think></think>{\"a\": 2}"}) {
    EXPECT_TRUE(testing::takes(*open, yes)) << yes;
  }
  for (const char* no : {"", "hm", "{\"a\":1}", "hm</think>", "hm</think>no",
                         "hm</think>\n\n\n{\"a\":1}", "hm</think>{\"a\":\"b\"}"}) {
    EXPECT_FALSE(testing::takes(*open, no)) << no;
  }
  const auto may_open = constraint(/*inside=*/false);
  for (const char* yes :
       {"{\"a\":1}", "<think>hm</think>{\"a\":1}", "<think>\n\n</think>\n\n{\"a\":1}"}) {
    EXPECT_TRUE(testing::takes(*may_open, yes)) << yes;
  }
  for (const char* no : {"", "<think>", "<think>{\"a\":1}", "<thin{\"a\":1}", "hm</think>{\"a\":1}",
                         "\n<think></think>{\"a\":1}"}) {
    EXPECT_FALSE(testing::takes(*may_open, no)) << no;
  }
  const auto begun = constraint(/*inside=*/false, /*written=*/6);
  EXPECT_TRUE(testing::takes(*begun, ">hm</think>{\"a\":1}"));
  EXPECT_FALSE(testing::takes(*begun, "{\"a\":1}"));
}

TEST_F(AfterReasoningTest, ATagMayBeAControlToken) {
  const auto matcher = constraint(/*inside=*/true, 0, /*control=*/0)->begin();
  EXPECT_TRUE(matcher->accept('h' + 1));
  EXPECT_FALSE(matcher->may_end());
  std::vector<uint32_t> mask((vocabulary().size() + 31) / 32);
  matcher->fill(mask);
  EXPECT_EQ(ids_of(mask).front(), 0);
  EXPECT_TRUE(matcher->accept(0));
  EXPECT_FALSE(matcher->accept(0));
  matcher->fill(mask);
  EXPECT_NE(ids_of(mask).front(), 0);
  for (const char byte : std::string("{\"a\":1}")) {
    ASSERT_TRUE(matcher->accept(static_cast<unsigned char>(byte) + 1));
  }
  EXPECT_TRUE(matcher->may_end());
}

// A random walk over the masks: each id of a mask is accepted by a fork, each other is not, and the
// text of the whole walk is reasoning and then what the constraint takes.
TEST_F(AfterReasoningTest, MasksSayWhatIsTaken) {
  std::mt19937 random(3);
  std::vector<uint32_t> mask((vocabulary().size() + 31) / 32);
  for (int round = 0; round < 12; ++round) {
    const auto matcher = constraint(round % 3 == 0, round % 3 == 1 ? 6 : 0)->begin();
    for (int step = 0; step < 12; ++step) {
      matcher->fill(mask);
      const std::vector<int32_t> ids = ids_of(mask);
      for (int32_t id = 0; id < static_cast<int32_t>(vocabulary().size()); ++id) {
        const bool named = std::ranges::find(ids, id) != ids.end();
        // Characters are whole in the answer alone, which the masks say and accept() does not.
        if (named) EXPECT_TRUE(matcher->fork()->accept(id)) << vocabulary()[id];
        if (!named && step % 4 == 0) EXPECT_FALSE(matcher->fork()->accept(id)) << vocabulary()[id];
      }
      if (ids.empty()) break;
      // Tags more often than others.
      int32_t next = ids[random() % ids.size()];
      const auto tags = static_cast<int32_t>(testing::byte_vocabulary().size());
      if (random() % 2 == 0 && ids.back() >= tags)
        next = ids.back() - static_cast<int32_t>(random() % 2);
      if (std::ranges::find(ids, next) == ids.end()) next = ids.back();
      ASSERT_TRUE(matcher->accept(next));
    }
  }
}

}  // namespace
}  // namespace recurve::after_reasoning_test
