#include "server/request/byte_budget.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

namespace recurve::byte_budget_test {

constexpr TenantId kOne = 1, kOther = 2;
constexpr int64_t kMost = 8 << 20;

TEST(ByteBudget, KnowsWhatEachTenantHas) {
  ByteBudget budget(kMost);
  std::optional<ByteBudget::Share> mine = budget.take(1000, kOne);
  const ByteBudget::Share more = budget.take(20, kOne), theirs = budget.take(300, kOther);
  EXPECT_EQ(budget.used(), 1320);
  EXPECT_EQ(budget.used(kOne), 1020);
  EXPECT_EQ(budget.used(kOther), 300);
  EXPECT_EQ(budget.used(3), 0) << "a tenant that asks for nothing";
  mine.reset();
  EXPECT_EQ(budget.used(kOne), 20);
  EXPECT_EQ(budget.used(kOther), 300);
}

TEST(ByteBudget, AShareGoesBackToItsTenantWhereverItWasMoved) {
  ByteBudget budget(kMost);
  {
    ByteBudget::Share mine = budget.take(5, kOne);
    ByteBudget::Share theirs = budget.take(7, kOther);
    ByteBudget::Share moved = std::move(mine);
    EXPECT_FALSE(mine);  // NOLINT: what a share is after it was moved from
    moved = std::move(theirs);
    theirs = {};
    EXPECT_TRUE(moved);
    EXPECT_EQ(budget.used(kOne), 0) << "what it was before went back";
    EXPECT_EQ(budget.used(kOther), 7);
  }
  EXPECT_EQ(budget.used(), 0);
  EXPECT_EQ(budget.used(kOther), 0);
}

TEST(ByteBudget, RefusesAndWritesNothingDown) {
  ByteBudget budget(kMost);
  const ByteBudget::Share first = budget.take(2 * kMost, kOne);
  EXPECT_TRUE(first) << "something always fits where nothing is taken";
  EXPECT_FALSE(budget.take(1, kOther));
  EXPECT_EQ(budget.used(kOther), 0);
}

TEST(ByteBudget, KeepsAnEighthForSmallCalls) {
  ByteBudget budget(kMost);
  const ByteBudget::Share large = budget.take(kMost - kMost / 8, kOne);
  EXPECT_FALSE(budget.take(ByteBudget::kSmall + 1, kOther));
  EXPECT_TRUE(budget.take(ByteBudget::kSmall, kOther));
}

// Half-sent bodies of one connection, or of many of one address, leave some for others.
TEST(ByteBudget, LargeCallsOfOneShareOrGroupLeaveAQuarter) {
  const auto share = [](TenantId address, TenantId connection) {
    return kVisitors | address << kConnectionBits | connection;
  };
  for (const bool one_connection : {true, false}) {
    ByteBudget budget(kMost);
    std::vector<ByteBudget::Share> flood;
    for (TenantId c = 1; c <= 100; ++c) {
      ByteBudget::Share more = budget.take(kMost / 16, share(1, one_connection ? 1 : c));
      if (more) flood.push_back(std::move(more));
    }
    // Each connection may have one body, as long as an eighth is left.
    EXPECT_EQ(flood.size(), 12u) << one_connection;
    EXPECT_TRUE(budget.take(kMost / 16, share(2, 1))) << "another address";
  }
}

TEST(ByteBudget, SharesOfNoBytesDoNotCount) {
  ByteBudget budget(kMost);
  std::optional<ByteBudget::Share> one = budget.take(0, kOne), another = budget.take(0, kOne);
  const ByteBudget::Share bytes = budget.take(9, kOne);
  one.reset();
  EXPECT_EQ(budget.used(kOne), 9);
  another.reset();
  EXPECT_EQ(budget.used(kOne), 9);
}

TEST(ByteBudget, OfTheMostThatThereIsHasRoomForAShareTwice) {
  ByteBudget budget(INT64_MAX);
  const ByteBudget::Share first = budget.take(1 << 20, kOne);
  EXPECT_TRUE(budget.take(1 << 20, kOne));
  EXPECT_TRUE(budget.take(INT64_MAX / 8, kOne)) << "no product of it overflows";
}

TEST(ByteBudget, ThreadsOfManyTenantsLeaveNothingBehind) {
  ByteBudget budget(int64_t{1} << 40);
  const auto take_some = [&](TenantId tenant) {
    std::vector<ByteBudget::Share> shares;
    for (int i = 0; i < 2000; ++i) {
      shares.push_back(budget.take(i, tenant));
      if (i % 3 == 0) shares.erase(shares.begin());
    }
  };
  {
    std::vector<std::jthread> threads;
    for (TenantId tenant = 0; tenant < 4; ++tenant) threads.emplace_back(take_some, tenant / 2);
  }
  EXPECT_EQ(budget.used(), 0);
  EXPECT_EQ(budget.used(0), 0);
  EXPECT_EQ(budget.used(1), 0);
}

}  // namespace recurve::byte_budget_test
