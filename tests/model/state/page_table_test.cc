// Which pages slots have, against a plain count of who has which.
#include "model/state/page_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace recurve::testing::page_table_test {

std::vector<int32_t> pages(const PageTable& table, int32_t slot) {
  const auto of = table.of(slot);
  return {of.begin(), of.end()};
}

TEST(PageTable, ForksShareWhatTheyHaveInCommon) {
  PageTable table(3, 5, 4);
  ASSERT_TRUE(table.grow(1, 3));
  EXPECT_EQ(table.free_pages(), 2);
  table.share(1, 2, 2);
  EXPECT_EQ(table.free_pages(), 2) << "a fork takes none";
  EXPECT_EQ(pages(table, 2), (std::vector{table.of(1)[0], table.of(1)[1]}));
  const int32_t before = table.of(2)[1];
  const PageTable::Own own = table.own(2, 1);
  EXPECT_EQ(own.from, before);
  EXPECT_EQ(own.to, table.of(2)[1]);
  EXPECT_EQ(table.of(1)[1], before) << "whom it was shared with has what it had";
  EXPECT_EQ(table.own(2, 1).to, 0) << "its own already";
  EXPECT_EQ(table.own(1, 1).to, 0) << "no other slot has it any more";
  table.shrink(1, 0);
  EXPECT_EQ(table.free_pages(), 3) << "page 0 of the fork is still there";
  EXPECT_FALSE(table.shared(table.of(2)[0]));
}

TEST(PageTable, TooFewFreePagesChangeNothing) {
  PageTable table(2, 3, 3);
  ASSERT_TRUE(table.grow(1, 2));
  table.take_changed();
  EXPECT_FALSE(table.grow(2, 2));
  EXPECT_TRUE(table.of(2).empty());
  table.share(1, 2, 2);
  ASSERT_TRUE(table.grow(1, 3));
  EXPECT_FALSE(table.own(2, 0).done);
  EXPECT_EQ(pages(table, 2)[0], pages(table, 1)[0]);
  EXPECT_TRUE(table.grow(1, 1)) << "what it has is more";
  EXPECT_EQ(table.of(1).size(), 3u);
}

TEST(PageTable, PagesThatAreStillCopiedFromAreNotFree) {
  PageTable table(1, 2, 2);
  table.hold_until(7);
  ASSERT_TRUE(table.grow(1, 2));
  table.shrink(1, 1);
  table.hold_until(9);
  table.shrink(1, 0);
  EXPECT_EQ(table.free_pages(), 0);
  table.reclaim([](uint64_t ticket) { return ticket <= 7; });
  EXPECT_EQ(table.free_pages(), 1);
  table.reclaim([](uint64_t) { return true; });
  EXPECT_EQ(table.free_pages(), 2);
}

TEST(PageTable, NoPageIsLostNorGivenTwice) {
  constexpr int kSlots = 6, kPages = 20, kMost = 8;
  PageTable table(kSlots, kPages, kMost);
  std::mt19937 random(3);
  const auto below = [&](int n) {
    return static_cast<int32_t>(random() % static_cast<unsigned>(n));
  };
  for (int round = 0; round < 20000; ++round) {
    const int32_t slot = 1 + below(kSlots), other = 1 + below(kSlots);
    const auto has = static_cast<int32_t>(table.of(slot).size());
    const std::vector<int32_t> old = pages(table, slot);
    table.take_changed();
    switch (below(4)) {
      case 0:
        table.grow(slot, below(kMost + 1));
        break;
      case 1:
        table.shrink(slot, below(kMost + 1));
        break;
      case 2:
        if (slot != other && table.of(other).empty()) table.share(slot, other, below(has + 1));
        break;
      default:
        if (has > 0) table.own(slot, below(has));
    }
    std::map<int32_t, int> of;
    for (int32_t s = 1; s <= kSlots; ++s) {
      const std::vector<int32_t> mine = pages(table, s);
      ASSERT_EQ(std::set(mine.begin(), mine.end()).size(), mine.size());
      for (const int32_t page : mine) {
        ASSERT_TRUE(page >= 1 && page <= kPages);
        ++of[page];
      }
    }
    for (const auto& [page, count] : of) ASSERT_EQ(table.shared(page), count > 1);
    ASSERT_EQ(static_cast<int>(of.size()) + table.free_pages(), kPages);
    const std::vector<int32_t> changed = table.take_changed();
    ASSERT_EQ(std::ranges::count(changed, slot) > 0, pages(table, slot) != old);
  }
}

}  // namespace recurve::testing::page_table_test
