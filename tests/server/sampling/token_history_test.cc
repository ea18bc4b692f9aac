#include "server/sampling/token_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace recurve::token_history_test {

using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::SizeIs;

std::vector<int32_t> prompt_of(const TokenHistory& history) {
  std::vector<int32_t> ids;
  history.for_each_in_prompt([&](int32_t id) { ids.push_back(id); });
  return ids;
}

std::map<int32_t, uint32_t> generated_of(const TokenHistory& history) {
  std::map<int32_t, uint32_t> times;
  for (const TokenHistory::Generated& said : history.generated()) times[said.id] = said.times;
  return times;
}

TEST(TokenHistory, StartsEmpty) {
  const TokenHistory history;
  EXPECT_THAT(prompt_of(history), ElementsAre());
  EXPECT_TRUE(history.generated().empty());
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
  EXPECT_EQ(history.generated().size(), generated.size()) << "each id once";
  EXPECT_EQ(generated_of(history), generated);
}

TEST(TokenHistory, AForkGoesItsOwnWay) {
  TokenHistory a;
  for (int32_t id = 0; id < 40; ++id) a.add_prompt(id);
  TokenHistory b = a;
  a.add_generated(1);
  b.add_generated(2);
  b.add_generated(100);
  b.add_prompt(50);
  EXPECT_THAT(generated_of(a), ElementsAre(Pair(1, 1)));
  EXPECT_THAT(generated_of(b), ElementsAre(Pair(2, 1), Pair(100, 1)));
  EXPECT_THAT(prompt_of(a), SizeIs(40));
  EXPECT_THAT(prompt_of(b), SizeIs(41));
}

TEST(TokenHistory, TheNextRequestSeesAnswersAsContext) {
  TokenHistory history;
  history.add_prompt(1);
  history.add_generated(1);
  history.add_generated(2);
  history.end_request();
  EXPECT_THAT(prompt_of(history), ElementsAre(1, 2));
  EXPECT_TRUE(history.generated().empty());
}

// Whatever the session has absorbed and said.
TEST(TokenHistory, BetweenRequestsItTakesABitOfEachId) {
  for (const int32_t vocab : {1, 64, 65, 50'257}) {
    TokenHistory history;
    for (int request = 0; request < 3; ++request) {
      for (int32_t id = 0; id < vocab; ++id) {
        request == 1 ? history.add_generated(id) : history.add_prompt(id);
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
