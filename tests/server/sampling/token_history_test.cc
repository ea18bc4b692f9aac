#include "server/sampling/token_history.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>

namespace recurve::token_history_test {

TEST(TokenHistory, StartsEmpty) {
  const TokenHistory history;
  EXPECT_TRUE(history.entries().empty());
  EXPECT_EQ(history.count(5).prompt, 0u);
  EXPECT_EQ(history.count(5).generated, 0u);
}

TEST(TokenHistory, CountsLikeAMap) {
  std::mt19937 generator(1);
  TokenHistory history;
  std::map<int32_t, uint32_t> prompt, generated;
  for (int i = 0; i < 20000; ++i) {
    // Runs, multiples of powers of two and large ids, which all land badly in a careless table.
    const int32_t id = static_cast<int32_t>(generator() % 700) << (generator() % 3 * 10);
    if (generator() % 2) {
      history.add_prompt(id);
      ++prompt[id];
    } else {
      history.add_generated(id);
      ++generated[id];
    }
  }
  std::map<int32_t, uint32_t> distinct = prompt;
  distinct.insert(generated.begin(), generated.end());
  EXPECT_EQ(history.entries().size(), distinct.size());
  for (const TokenHistory::Entry& e : history.entries()) {
    EXPECT_EQ(e.prompt, prompt[e.id]);
    EXPECT_EQ(e.generated, generated[e.id]);
    EXPECT_EQ(history.count(e.id).prompt, e.prompt);
    EXPECT_EQ(history.count(e.id).generated, e.generated);
  }
  EXPECT_EQ(history.count(699 * 1024 + 1).prompt, 0u);
  EXPECT_EQ(history.count(std::numeric_limits<int32_t>::max()).generated, 0u);
}

TEST(TokenHistory, EntriesKeepTheOrderOfFirstOccurrence) {
  TokenHistory history;
  history.add_prompt(std::vector<int32_t>{9, 3, 9, 7});
  history.add_generated(3);
  history.add_generated(1, 4);
  ASSERT_EQ(history.entries().size(), 4u);
  EXPECT_EQ(history.entries()[0].id, 9);
  EXPECT_EQ(history.entries()[1].id, 3);
  EXPECT_EQ(history.entries()[2].id, 7);
  EXPECT_EQ(history.entries()[3].id, 1);
  EXPECT_EQ(history.count(9).prompt, 2u);
  EXPECT_EQ(history.count(3).generated, 1u);
  EXPECT_EQ(history.count(1).generated, 4u);
}

TEST(TokenHistory, AForkGoesItsOwnWay) {
  TokenHistory a;
  for (int32_t id = 0; id < 40; ++id) a.add_prompt(id);
  TokenHistory b = a;
  a.add_generated(1);
  b.add_generated(2);
  b.add_generated(100);
  EXPECT_EQ(a.count(1).generated, 1u);
  EXPECT_EQ(a.count(2).generated, 0u);
  EXPECT_EQ(b.count(1).generated, 0u);
  EXPECT_EQ(b.count(2).generated, 1u);
  EXPECT_EQ(a.entries().size(), 40u);
  EXPECT_EQ(b.entries().size(), 41u);
}

TEST(TokenHistory, TheNextRequestSeesAnswersAsContext) {
  TokenHistory history;
  history.add_prompt(1);
  history.add_generated(1);
  history.add_generated(2);
  history.begin_request();
  EXPECT_EQ(history.count(1).prompt, 2u);
  EXPECT_EQ(history.count(2).prompt, 1u);
  EXPECT_EQ(history.count(1).generated, 0u);
  EXPECT_EQ(history.count(2).generated, 0u);
}

TEST(TokenHistory, CountsSaturate) {
  constexpr uint32_t kMost = std::numeric_limits<uint32_t>::max();
  TokenHistory history;
  history.add_prompt(1, kMost);
  history.add_prompt(1);
  history.add_generated(1, 5);
  history.begin_request();
  EXPECT_EQ(history.count(1).prompt, kMost);
}

TEST(TokenHistoryDeathTest, NegativeIdsAreABug) {
  TokenHistory history;
  EXPECT_DEATH(history.add_prompt(-1), "CHECK failed");
}

}  // namespace recurve::token_history_test
