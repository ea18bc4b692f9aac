#include "server/observe/rate_budget.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace recurve::rate_budget_test {

using std::chrono::milliseconds;
constexpr RateBudget::Rate kRate = {.at_once = 3, .per_second = 10};

TEST(RateBudget, AllowsABurstAndThenARate) {
  RateBudget budget;
  auto now = RateBudget::Time() + std::chrono::hours(1);
  EXPECT_TRUE(budget.is_full(kRate, now));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(budget.spend(kRate, now)) << i;
  EXPECT_TRUE(budget.is_spent(kRate, now));
  // Rejected events do not count.
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(budget.spend(kRate, now)) << i;
  now += milliseconds(101);
  EXPECT_FALSE(budget.is_spent(kRate, now));
  EXPECT_TRUE(budget.spend(kRate, now));
  EXPECT_FALSE(budget.spend(kRate, now));
  EXPECT_TRUE(budget.is_full(kRate, now + milliseconds(301)));
}

TEST(RateBudget, IsPerNameAndRemovesFullOnes) {
  RateBudgets budgets(kRate);
  const auto now = RateBudget::Time() + std::chrono::hours(1);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(budgets.spend("one", now)) << i;
  EXPECT_FALSE(budgets.spend("one", now));
  EXPECT_TRUE(budgets.is_spent("one", now));
  EXPECT_FALSE(budgets.is_spent("other", now));
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(budgets.spend(std::to_string(i), now)) << i;
  EXPECT_EQ(budgets.size(), 1001U);
  EXPECT_TRUE(budgets.spend("last", now + milliseconds(2000)));
  EXPECT_EQ(budgets.size(), 1U);
}

}  // namespace recurve::rate_budget_test
