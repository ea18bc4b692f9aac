// Which sequence gives its pages to others.
#include "server/scheduler/preemption.h"

#include <gtest/gtest.h>

#include <vector>

namespace recurve::preemption_test {

constexpr TenantId kOne = 1, kOther = 2;

TEST(ChooseVictim, OfTheTenantWithTheMostPagesForItsWeight) {
  EXPECT_EQ(choose_victim(std::vector<PageHolder>{{.tenant = kOne, .pages = 3},
                                                  {.tenant = kOther, .pages = 2},
                                                  {.tenant = kOther, .pages = 2}}),
            1);
  EXPECT_EQ(choose_victim(std::vector<PageHolder>{{.tenant = kOne, .pages = 3},
                                                  {.tenant = kOther, .weight = 2, .pages = 2},
                                                  {.tenant = kOther, .weight = 2, .pages = 2}}),
            0);
}

// Priorities order the requests of one tenant, and not those of two.
TEST(ChooseVictim, OfOneTenantTheLowestPriorityThenTheYoungest) {
  const std::vector<PageHolder> holders = {
      {.tenant = kOne, .priority = -5, .started = 9, .pages = 1},
      {.tenant = kOther, .priority = 1, .started = 3, .pages = 9},
      {.tenant = kOther, .priority = 0, .started = 1, .pages = 1},
      {.tenant = kOther, .priority = 0, .started = 2, .pages = 1}};
  EXPECT_EQ(choose_victim(holders), 3);
}

TEST(ChooseVictim, OnlyOneThatMayAndHasPages) {
  EXPECT_EQ(choose_victim(std::vector<PageHolder>{{.tenant = kOne, .pages = 9, .may = false},
                                                  {.tenant = kOther, .pages = 1},
                                                  {.tenant = kOther, .started = 5}}),
            1);
  EXPECT_EQ(choose_victim(std::vector<PageHolder>{{.tenant = kOne, .pages = 9, .may = false}}),
            std::nullopt);
  EXPECT_EQ(choose_victim({}), std::nullopt);
}

// Without keys: many connections of one address are a group.
TEST(ChooseVictim, OfTheGroupWithTheMost) {
  const TenantId first = visitor_of("10.0.0.1", 1), second = visitor_of("10.0.0.1", 2),
                 third = visitor_of("10.0.0.1", 3), other = visitor_of("10.0.0.2", 4);
  const std::vector<PageHolder> holders = {{.tenant = other, .pages = 5},
                                           {.tenant = first, .pages = 2},
                                           {.tenant = second, .pages = 3},
                                           {.tenant = third, .pages = 2}};
  EXPECT_EQ(choose_victim(holders), 2);
}

TEST(ChooseVictimFor, OnlyWhereAnotherTenantHasMoreThanTheNeedWouldGive) {
  const std::vector<PageHolder> holders = {{.tenant = kOne, .pages = 6},
                                           {.tenant = kOther, .pages = 1}};
  EXPECT_EQ(choose_victim_for({.tenant = kOther, .pages = 4}, holders), 0);
  EXPECT_EQ(choose_victim_for({.tenant = kOther, .pages = 5}, holders), std::nullopt);
  EXPECT_EQ(choose_victim_for({.tenant = kOther, .weight = 2, .pages = 5}, holders), 0);
  EXPECT_EQ(choose_victim_for({.tenant = kOne, .pages = 1}, holders), std::nullopt);
}

}  // namespace recurve::preemption_test
