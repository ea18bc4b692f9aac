// How tenants share slots and steps, as pure functions.
#include "server/scheduler/shares.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "server/scheduler/scheduler.h"

namespace recurve::shares_test {

constexpr TenantId kMany = 1, kOne = 2, kThird = 3;

Waiter waiter(TenantId tenant, double weight = 1, int most = TenantLimits::kNone) {
  return {.tokens = 1, .tenant = tenant, .weight = weight, .most_slots = most};
}

// Gives slots one after another to those in the line, all of whom always want more.
std::map<TenantId, int> give(int slots, const std::vector<Waiter>& line) {
  std::vector<TenantUse> uses;
  for (const Waiter& one : line) uses.push_back({.tenant = one.tenant});
  uint64_t turns = 0;
  for (int i = 0; i < slots; ++i) {
    const auto tenant = tenant_in_turn(line, uses);
    if (!tenant) break;
    for (TenantUse& use : uses) {
      if (use.tenant != *tenant) continue;
      ++use.slots;
      use.turn = ++turns;
    }
  }
  std::map<TenantId, int> given;
  for (const TenantUse& use : uses) given[use.tenant] = use.slots;
  return given;
}

TEST(TenantInTurn, SharesSlotsByWeight) {
  EXPECT_EQ(give(12, {waiter(kMany), waiter(kOne)}),
            (std::map<TenantId, int>{{kMany, 6}, {kOne, 6}}));
  EXPECT_EQ(give(12, {waiter(kMany, 2), waiter(kOne), waiter(kThird)}),
            (std::map<TenantId, int>{{kMany, 6}, {kOne, 3}, {kThird, 3}}));
}

TEST(TenantInTurn, KeepsToWhatATenantMayHave) {
  EXPECT_EQ(give(12, {waiter(kMany, 100, 7), waiter(kOne)}),
            (std::map<TenantId, int>{{kMany, 7}, {kOne, 5}}));
  EXPECT_EQ(give(12, {waiter(kMany, 1, 7)}), (std::map<TenantId, int>{{kMany, 7}}));
}

// With one slot, which both have by turns, however many of one stand in front.
TEST(TenantInTurn, OfEqualsTheOneWhoseTurnIsLongerAgo) {
  const std::vector<Waiter> line = {waiter(kMany), waiter(kMany), waiter(kMany), waiter(kOne)};
  EXPECT_EQ(tenant_in_turn(line, std::vector<TenantUse>{{kMany, 0, 1}, {kOne, 0, 0}}), kOne);
  EXPECT_EQ(tenant_in_turn(line, std::vector<TenantUse>{{kMany, 0, 1}, {kOne, 0, 2}}), kMany);
}

TEST(MostSlots, AShareOfAllOrANumberAndAtLeastOne) {
  EXPECT_EQ(most_slots({}, 16), 16);
  EXPECT_EQ(most_slots({.slot_share = 0.875}, 16), 14);
  EXPECT_EQ(most_slots({.slot_share = 0.875}, 1), 1);
  EXPECT_EQ(most_slots({.slots = 3}, 16), 3);
  EXPECT_EQ(most_slots({.slots = 30}, 16), 16);
}

TEST(PlanStep, TenantsHaveTheirTurnsInTurn) {
  // One tenant's prompts came first, all of them; the other's gets two chunks of four.
  std::vector<Pending> pending;
  for (int i = 0; i < 5; ++i) {
    pending.push_back(
        {.tokens = 1000, .prompt = true, .scored = false, .place = i, .tenant = kMany});
  }
  pending.push_back({.tokens = 1000, .prompt = true, .scored = false, .place = 99, .tenant = kOne});
  int many = 0, one = 0;
  uint64_t turn = 0;
  for (int step = 0; step < 8; ++step) {
    const StepPlan plan =
        plan_step({.rows = 8, .logits = 100, .chunk = 8, .prompt_rows = 8}, pending, turn);
    turn = plan.next_turn;
    for (size_t i = 0; i < plan.rows.size(); ++i) (i == 5 ? one : many) += plan.rows[i];
  }
  EXPECT_EQ(one, 32);
  EXPECT_EQ(many, 32);
}

// What another tenant has in the line does not stand in front, however urgent.
TEST(ExpectedWaitOfTenants, ALongLineOfAnotherIsNotWaitedFor) {
  const HoldTimeEstimator holds;
  std::vector<Waiter> line;
  for (int i = 0; i < 64; ++i) {
    line.push_back({.place = -i, .tokens = 1000, .tenant = kMany, .most_slots = 3});
  }
  const std::vector<Holder> holders(3, {.tokens = 0, .may_generate = 1000, .tenant = kMany});
  const auto wait = [&](TenantId tenant) {
    return expected_wait({.place = 100, .tokens = 10, .tenant = tenant}, {.line = line,
                                                                          .holders = holders,
                                                                          .slots = 4,
                                                                          .prompt_rate = 100,
                                                                          .step_seconds = 0.1,
                                                                          .holds = holds});
  };
  EXPECT_LE(wait(kOne), 0.1) << "as many tokens as its own go before";
  EXPECT_GE(wait(kMany), 100) << "a slot that its own have comes free";
}

}  // namespace recurve::shares_test
