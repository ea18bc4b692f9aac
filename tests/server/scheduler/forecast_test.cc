#include "server/scheduler/forecast.h"

#include <gtest/gtest.h>

#include <queue>
#include <random>

namespace recurve::forecast_test {

TEST(ExpectedWait, IsNothingWhereThereIsRoom) {
  EXPECT_EQ(expected_wait({}), 0);
  EXPECT_EQ(expected_wait({.slots_missing = 0, .releases = {5, 6}, .prompt_rate = 100}), 0);
  EXPECT_EQ(expected_wait({.slots_missing = -3, .releases = {5}}), 0);
}

TEST(ExpectedWait, IsUntilEnoughSlotsHaveComeFree) {
  const std::vector<double> releases = {3, 1, 2};
  EXPECT_EQ(expected_wait({.slots_missing = 1, .releases = releases}), 1);
  EXPECT_EQ(expected_wait({.slots_missing = 2, .releases = releases}), 2);
  EXPECT_EQ(expected_wait({.slots_missing = 3, .releases = releases}), 3);
  // Then those that have taken them in between end one after the other.
  EXPECT_EQ(expected_wait({.slots_missing = 4, .releases = releases, .hold_seconds = 10}), 11);
  EXPECT_EQ(expected_wait({.slots_missing = 9, .releases = releases, .hold_seconds = 10}), 23);
}

TEST(ExpectedWait, IsUntilEarlierPromptsAreAbsorbed) {
  EXPECT_EQ(expected_wait({.prompt_tokens = 500, .prompt_rate = 1000}), 0.5);
  EXPECT_EQ(expected_wait({.prompt_tokens = 500, .prompt_rate = 0}), 0) << "nothing is known yet";
  EXPECT_EQ(expected_wait(
                {.slots_missing = 1, .releases = {2}, .prompt_tokens = 500, .prompt_rate = 1000}),
            2)
      << "they are absorbed meanwhile";
}

// Against a line of requests that all hold their slots equally long, played through.
TEST(ExpectedWait, IsWhatALineOfEqualRequestsTakes) {
  std::mt19937 random(1);
  for (int round = 0; round < 1000; ++round) {
    const int slots = std::uniform_int_distribution<int>(1, 20)(random);
    const int in_line = std::uniform_int_distribution<int>(0, 60)(random);
    const double hold = 7;
    std::vector<double> releases;
    for (int i = 0; i < slots; ++i) {
      releases.push_back(std::uniform_real_distribution<double>(0, hold)(random));
    }
    std::priority_queue<double, std::vector<double>, std::greater<>> free(releases.begin(),
                                                                          releases.end());
    for (int i = 0; i < in_line; ++i) {
      const double begins = free.top();
      free.pop();
      free.push(begins + hold);
    }
    EXPECT_NEAR(
        expected_wait({.slots_missing = in_line + 1, .releases = releases, .hold_seconds = hold}),
        free.top(), 1e-9);
  }
}

TEST(HoldTimeEstimator, ExpectsEverythingUntilItHasSeenOtherwise) {
  HoldTimeEstimator holds;
  EXPECT_EQ(holds.expected_tokens(100), 100);
  EXPECT_EQ(holds.hold_seconds(), 0);
  for (int i = 0; i < 100; ++i) holds.observe(2 + i % 2, 25, 100);
  EXPECT_NEAR(holds.expected_tokens(100), 25, 0.1);
  EXPECT_NEAR(holds.hold_seconds(), 2.5, 0.1);
  holds.observe(2.5, 0, 0);  // a prompt that was only absorbed
  EXPECT_GT(holds.expected_tokens(100), 25);
}

}  // namespace recurve::forecast_test
