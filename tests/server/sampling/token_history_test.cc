#include "server/sampling/token_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>
#include <set>

namespace recurve::token_history_test {

using ::testing::ElementsAre;

std::vector<int32_t> prompt_of(const TokenHistory& history) {
  std::vector<int32_t> ids;
  history.for_each_in_prompt([&](int32_t id) { ids.push_back(id); });
  return ids;
}

TEST(TokenHistory, StartsEmpty) {
  const TokenHistory history;
  EXPECT_THAT(prompt_of(history), ElementsAre());
  EXPECT_TRUE(history.generated().empty());
  EXPECT_FALSE(history.in_prompt(5));
  EXPECT_EQ(history.generated(5), 0u);
  EXPECT_EQ(history.bytes(), 0u);
}

TEST(TokenHistory, CountsLikeAMap) {
  std::mt19937 generator(1);
  TokenHistory history;
  std::set<int32_t> prompt;
  std::map<int32_t, uint32_t> generated;
  for (int i = 0; i < 20000; ++i) {
    // Runs, multiples of powers of two and large ids, which all land badly in a careless table.
    const int32_t id = static_cast<int32_t>(generator() % 700) << (generator() % 3 * 10);
    if (generator() % 2) {
      history.add_prompt(id);
      prompt.insert(id);
    } else {
      history.add_generated(id);
      ++generated[id];
    }
  }
  EXPECT_EQ(prompt_of(history), std::vector<int32_t>(prompt.begin(), prompt.end()));
  for (const int32_t id : prompt) EXPECT_TRUE(history.in_prompt(id));
  EXPECT_EQ(history.generated().size(), generated.size());
  for (const TokenHistory::Generated& said : history.generated()) {
    EXPECT_EQ(said.times, generated[said.id]);
    EXPECT_EQ(history.generated(said.id), said.times);
  }
  EXPECT_FALSE(history.in_prompt(699 * 1024 + 1));
  EXPECT_FALSE(history.in_prompt(std::numeric_limits<int32_t>::max()));
  EXPECT_EQ(history.generated(std::numeric_limits<int32_t>::max()), 0u);
}

TEST(TokenHistory, AForkGoesItsOwnWay) {
  TokenHistory a;
  for (int32_t id = 0; id < 40; ++id) a.add_prompt(id);
  TokenHistory b = a;
  a.add_generated(1);
  b.add_generated(2);
  b.add_generated(100);
  b.add_prompt(50);
  EXPECT_EQ(a.generated(1), 1u);
  EXPECT_EQ(a.generated(2), 0u);
  EXPECT_FALSE(a.in_prompt(50));
  EXPECT_EQ(b.generated(1), 0u);
  EXPECT_EQ(b.generated(2), 1u);
  EXPECT_EQ(b.generated().size(), 2u);
}

TEST(TokenHistory, TheNextRequestSeesAnswersAsContext) {
  TokenHistory history;
  history.add_prompt(1);
  history.add_generated(1);
  history.add_generated(2);
  history.end_request();
  EXPECT_THAT(prompt_of(history), ElementsAre(1, 2));
  EXPECT_EQ(history.generated(1), 0u);
  EXPECT_TRUE(history.generated().empty());
}

TEST(TokenHistory, CountsSaturate) {
  constexpr uint32_t kMost = std::numeric_limits<uint32_t>::max();
  TokenHistory history;
  history.add_generated(1, kMost);
  history.add_generated(1);
  EXPECT_EQ(history.generated(1), kMost);
}

// Whatever the session has absorbed and said.
TEST(TokenHistory, BetweenRequestsItTakesABitOfEachId) {
  for (const int32_t vocab : {1, 64, 65, 50'257}) {
    TokenHistory history;
    for (int request = 0; request < 3; ++request) {
      for (int32_t id = 0; id < vocab; ++id) {
        request == 1 ? history.add_generated(id, 7) : history.add_prompt(id);
      }
      history.end_request();
      EXPECT_LE(history.bytes(), TokenHistory::most_bytes(vocab)) << vocab;
    }
  }
  EXPECT_EQ(TokenHistory::most_bytes(50'257), 6'288u);
}

TEST(TokenHistoryDeathTest, NegativeIdsAreABug) {
  TokenHistory history;
  EXPECT_DEATH(history.add_prompt(-1), "CHECK failed");
  EXPECT_DEATH(history.add_generated(-1), "CHECK failed");
}

}  // namespace recurve::token_history_test
