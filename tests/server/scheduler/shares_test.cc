// How tenants share slots and steps, as pure functions.
#include "server/scheduler/shares.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "server/scheduler/scheduler.h"

namespace recurve::shares_test {

constexpr TenantId kMany = 1, kOne = 2, kThird = 3;
constexpr double kNow = 1000;

Waiter waiter(TenantId tenant, double weight = 1, int most = TenantLimits::kNone) {
  return {.tokens = 1, .tenant = tenant, .weight = weight, .most_slots = most};
}

// Gives slots one after another to those in the line, all of whom always want more.
std::map<TenantId, int> give(int slots, const std::vector<Waiter>& line) {
  std::vector<TenantUse> uses;
  for (const Waiter& one : line) {
    uses.push_back({.tenant = one.tenant, .weight = one.weight, .most = one.most_slots});
  }
  uint64_t turns = 0;
  for (int i = 0; i < slots; ++i) {
    const auto tenant = tenant_in_turn(line, SlotUse(uses, slots, kNow));
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
  const auto in_turn = [&](uint64_t turn_of_many, uint64_t turn_of_one) {
    const std::vector<TenantUse> uses = {{kMany, 0, turn_of_many}, {kOne, 0, turn_of_one}};
    return tenant_in_turn(line, SlotUse(uses, 1, kNow));
  };
  EXPECT_EQ(in_turn(1, 0), kOne);
  EXPECT_EQ(in_turn(1, 2), kMany);
}

// The last slot is for a tenant that has fewer and has asked lately, also if it has some.
TEST(TenantInTurn, KeepsTheLastSlotForWhoHasFewer) {
  std::vector<TenantUse> uses = {{.tenant = kMany, .slots = 15},
                                 {.tenant = kOne, .slots = 0, .asked = kNow - kActiveSeconds / 2}};
  const std::vector<Waiter> many = {waiter(kMany)}, both = {waiter(kMany), waiter(kOne)};
  const auto in_turn = [&](const std::vector<Waiter>& line, int slots, double now = kNow) {
    return tenant_in_turn(line, SlotUse(uses, slots, now));
  };
  EXPECT_EQ(in_turn(many, 16), std::nullopt);
  EXPECT_EQ(in_turn(both, 16), kOne);
  EXPECT_EQ(in_turn(many, 17), kMany) << "it is not the last";
  EXPECT_EQ(in_turn(many, 16, kNow + kActiveSeconds), kMany) << "no other tenant is active";
  uses[0].slots = 14;
  uses[1].slots = 1;
  EXPECT_EQ(in_turn(many, 16), std::nullopt) << "the other one has fewer";
  EXPECT_EQ(in_turn(both, 16), kOne);
  EXPECT_EQ(in_turn(many, 17), kMany);
  uses[1].most = 1;
  EXPECT_EQ(in_turn(many, 16), kMany) << "the other one may have no more";
  uses[1] = {.tenant = kOne, .slots = 2, .weight = 0.125};
  EXPECT_EQ(in_turn(many, 17), kMany) << "the other one has more for its weight";
  uses[1] = {.tenant = kOne, .slots = 0, .asked = kNow, .weight = 0.01};
  EXPECT_EQ(in_turn(many, 15), std::nullopt) << "a tenant without slots is first";
  uses = {{.tenant = kMany, .slots = 2}, {.tenant = kOne, .slots = 0, .asked = kNow}};
  EXPECT_EQ(in_turn(many, 3), kMany) << "one of three would be too many";
}

TenantId visitor(TenantId address, TenantId connection) {
  return kVisitors | address << kConnectionBits | connection;
}

// Also before any other tenant has asked: nothing is known of a connection that is yet to come.
TEST(TenantInTurn, AnEighthIsKeptForConnectionsWithoutASlot) {
  for (const auto& [slots, all_but] :
       std::map<int, int>{{3, 0}, {4, 1}, {8, 1}, {16, 2}, {256, 4}}) {
    EXPECT_EQ(give(slots, {waiter(visitor(0, 1))}).at(visitor(0, 1)), slots - all_but) << slots;
  }
  std::vector<TenantUse> uses = {{.tenant = visitor(0, 1), .slots = 7},
                                 {.tenant = visitor(0, 2), .slots = 7},
                                 {.tenant = visitor(0, 3)}};
  const std::vector<Waiter> line = {waiter(visitor(0, 1)), waiter(visitor(0, 2))};
  EXPECT_EQ(tenant_in_turn(line, SlotUse(uses, 16, kNow)), std::nullopt);
  EXPECT_EQ(tenant_in_turn({{waiter(visitor(0, 3))}}, SlotUse(uses, 16, kNow)), visitor(0, 3));
}

// In addition to the eighth: what a connection without a slot finds, one that has some may use too.
TEST(TenantInTurn, AConnectionWithSlotsLeavesOneMoreForAnotherThatHasSome) {
  std::vector<TenantUse> uses = {{.tenant = visitor(1, 1), .slots = 12},
                                 {.tenant = visitor(1, 2), .slots = 1}};
  EXPECT_EQ(tenant_in_turn({{waiter(visitor(1, 1))}}, SlotUse(uses, 16, kNow)), std::nullopt);
  EXPECT_EQ(tenant_in_turn({{waiter(visitor(1, 2))}}, SlotUse(uses, 16, kNow)), visitor(1, 2));
}

TEST(TenantInTurn, ConnectionsShareWhatIsTheirAddresss) {
  const std::vector<Waiter> line = {waiter(visitor(1, 1)), waiter(visitor(1, 2)),
                                    waiter(visitor(1, 3)), waiter(visitor(2, 4))};
  const std::map<TenantId, int> given = give(16, line);
  EXPECT_EQ(given.at(visitor(2, 4)), 7);
  for (TenantId c = 1; c <= 3; ++c) EXPECT_GE(given.at(visitor(1, c)), 2) << c;
}

TEST(MostSlots, AShareOfAllOrANumberAndAtLeastOne) {
  const auto most = [](const TenantLimits& limits, int slots) {
    return most_slots({.tenant = kMany, .limits = limits}, slots);
  };
  EXPECT_EQ(most({}, 16), 16);
  EXPECT_EQ(most({.slot_share = 0.875}, 16), 14);
  EXPECT_EQ(most({.slot_share = 0.875}, 1), 1);
  EXPECT_EQ(most({.slots = 3}, 16), 3);
  EXPECT_EQ(most({.slots = 30}, 16), 16);
}

TEST(SlotUse, AnAddressIsOneOfSeveralWhileSeveralAreKnown) {
  std::vector<TenantUse> uses;
  for (TenantId c = 1; c <= 14; ++c) uses.push_back({.tenant = visitor(1, c), .slots = 1});
  uses.push_back({.tenant = visitor(1, 15)});
  const TenantUse& next = uses.back();
  EXPECT_TRUE(SlotUse(uses, 16, kNow).may_have_more(next)) << "no other address is known";
  uses.push_back({.tenant = visitor(2, 1), .slots = 0, .asked = kNow - kKnownSeconds / 2});
  EXPECT_TRUE(several_are_known(uses, kNow));
  EXPECT_FALSE(SlotUse(uses, 16, kNow).may_have_more(uses[14]));
  EXPECT_TRUE(SlotUse(uses, 16, kNow).may_have_more(uses[15]));
  EXPECT_FALSE(several_are_known(uses, kNow + kKnownSeconds));
}

// What so many steps of one chunk each give the tenants.
std::map<TenantId, int> rows_of_steps(int steps, const std::vector<StepCandidate>& pending) {
  std::map<TenantId, int> rows;
  Turns turns;
  for (int step = 0; step < steps; ++step) {
    const StepPlan plan =
        plan_step({.rows = 8, .logits = 100, .chunk = 8, .prompt_rows = 8}, pending, turns);
    turns = plan.turns;
    for (size_t i = 0; i < plan.rows.size(); ++i) rows[pending[i].tenant] += plan.rows[i];
  }
  return rows;
}

TEST(PlanStep, TenantsHaveTheirTurnsInTurn) {
  // One tenant's prompts came first, all of them; the other's gets two chunks of four.
  std::vector<StepCandidate> pending;
  for (int i = 0; i < 5; ++i) {
    pending.push_back(
        {.tokens = 1000, .prompt = true, .scored = false, .rank = i, .tenant = kMany});
  }
  pending.push_back({.tokens = 1000, .prompt = true, .scored = false, .rank = 99, .tenant = kOne});
  const auto rows = rows_of_steps(8, pending);
  EXPECT_EQ(rows.at(kOne), 32);
  EXPECT_EQ(rows.at(kMany), 32);
}

TEST(PlanStep, TenantsHaveStepsByWeight) {
  const std::vector<StepCandidate> pending = {
      {.tokens = 10000, .prompt = true, .scored = false, .tenant = kMany, .weight = 3},
      {.tokens = 10000, .prompt = true, .scored = false, .tenant = kOne}};
  const auto rows = rows_of_steps(8, pending);
  EXPECT_EQ(rows.at(kMany), 48);
  EXPECT_EQ(rows.at(kOne), 16);
}

// Whose prompt comes while another's are absorbed is in the next step, if it has fewer sequences.
TEST(PlanStep, WhoAsksForLittleGoesFirst) {
  std::vector<StepCandidate> pending(
      3, {.tokens = 80, .prompt = true, .scored = false, .rank = 0, .tenant = kMany});
  const StepBounds bounds{.rows = 20, .logits = 100, .chunk = 8, .prompt_rows = 0};
  StepPlan plan = plan_step(bounds, pending, {});
  EXPECT_EQ(plan.rows, (std::vector{8, 0, 0}));
  pending.push_back({.tokens = 16, .prompt = true, .scored = false, .rank = 9, .tenant = kOne});
  plan = plan_step(bounds, pending, plan.turns);
  EXPECT_EQ(plan.rows, (std::vector{0, 0, 0, 8}));
  plan = plan_step(bounds, pending, plan.turns);
  EXPECT_EQ(plan.rows, (std::vector{8, 0, 0, 0})) << "then the other";
}

constexpr StepCandidate decode_of(TenantId tenant) {
  return {.tokens = 1, .prompt = false, .scored = false, .tenant = tenant};
}
constexpr StepCandidate prompt_of(TenantId tenant, int tokens) {
  return {.tokens = tokens, .prompt = true, .scored = false, .tenant = tenant};
}
constexpr StepBounds kApart{
    .rows = 100, .logits = 100, .chunk = 8, .prompt_rows = 50, .max_prompt_rows_with_decodes = 4};

// A prompt that takes longer than the decodes has every second step, and of it a chunk.
TEST(PlanStep, LongPromptsAndDecodesGoByTurns) {
  const std::vector<StepCandidate> pending = {decode_of(kMany), prompt_of(kMany, 24),
                                              prompt_of(kMany, 24), decode_of(kMany)};
  StepPlan plan;
  for (int i = 0; i < 3; ++i) {
    plan = plan_step(kApart, pending, plan.turns);
    EXPECT_EQ(plan.rows, (std::vector{0, 8, 0, 0})) << i;
    plan = plan_step(kApart, pending, plan.turns);
    EXPECT_EQ(plan.rows, (std::vector{1, 0, 0, 1})) << i;
  }
}

TEST(PlanStep, WhatHardlyTakesLongerGoesTogether) {
  const auto rows = [](const StepBounds& bounds, const std::vector<StepCandidate>& pending) {
    return plan_step(bounds, pending, {}).rows;
  };
  EXPECT_EQ(rows(kApart, {decode_of(kMany), prompt_of(kOne, 4)}), (std::vector{1, 4}));
  EXPECT_EQ(rows(kApart, {prompt_of(kMany, 8), prompt_of(kOne, 8)}), (std::vector{8, 8}))
      << "no sequence decodes";
  StepBounds alone = kApart;
  alone.max_prompt_rows_with_decodes = INT32_MAX;
  EXPECT_EQ(rows(alone, {decode_of(kMany), prompt_of(kOne, 8)}), (std::vector{1, 8}));
}

// Who has nothing else running need not wait for a step of others' prompts and one of their
// decodes; but these wait for two steps at most.
TEST(PlanStep, APromptOfWhoHasNoDecodesGoesBeforeOthersDecodes) {
  std::vector<StepCandidate> pending = {decode_of(kMany), prompt_of(kMany, 80)};
  StepPlan plan = plan_step(kApart, pending, {});
  EXPECT_EQ(plan.rows, (std::vector{0, 8}));
  pending.push_back(prompt_of(kOne, 80));
  plan = plan_step(kApart, pending, plan.turns);
  EXPECT_EQ(plan.rows, (std::vector{0, 0, 8}));
  plan = plan_step(kApart, pending, plan.turns);
  EXPECT_EQ(plan.rows, (std::vector{1, 0, 0}));
}

// Where decodes take most of a step, a step of one short prompt alone ends sooner. Others' decodes
// wait for that one step only, and a tenant with decodes is not a new tenant.
TEST(PlanStep, AShortPromptOfANewTenantGoesBeforeOthersDecodes) {
  StepBounds bounds = kApart;
  bounds.separate_new_tenants = true;
  std::vector<StepCandidate> pending = {decode_of(kMany), prompt_of(kOne, 4), decode_of(kMany)};
  StepPlan plan = plan_step(bounds, pending, {});
  EXPECT_EQ(plan.rows, (std::vector{0, 4, 0}));
  pending[1] = decode_of(kOne);
  pending.push_back(prompt_of(kOne, 4));
  plan = plan_step(bounds, pending, plan.turns);
  EXPECT_EQ(plan.rows, (std::vector{1, 1, 1, 4}));
  // New tenants one after the other do not delay decodes by more than two steps.
  pending = {decode_of(kMany)};
  plan = {};
  for (int step = 0; step < 6; ++step) {
    pending.push_back(prompt_of(kOne + 1 + static_cast<TenantId>(step), 4));
    plan = plan_step(bounds, pending, plan.turns);
    EXPECT_EQ(plan.rows[0], step % 3 == 2 ? 1 : 0) << step;
    pending.resize(1);
  }
}

// What another tenant has in the line does not stand in front, however urgent.
TEST(ExpectedWaitOfTenants, ALongLineOfAnotherIsNotWaitedFor) {
  const HoldTimeEstimator holds;
  std::vector<Waiter> line;
  for (int i = 0; i < 64; ++i) {
    line.push_back({.rank = -i, .tokens = 1000, .tenant = kMany, .most_slots = 3});
  }
  const std::vector<Holder> holders(3, {.tokens = 0, .may_generate = 1000, .tenant = kMany});
  const auto wait = [&](TenantId tenant) {
    return expected_wait({.rank = 100, .tokens = 10, .tenant = tenant}, {.line = line,
                                                                         .holders = holders,
                                                                         .slots = 4,
                                                                         .prompt_rate = 100,
                                                                         .step_seconds = 0.1,
                                                                         .holds = holds});
  };
  EXPECT_LE(wait(kOne), 0.1) << "as many tokens as its own go before";
  EXPECT_GE(wait(kMany), 100) << "a slot that its own have comes free";
}

// Where states grow, the slot of a tenant that has more is not waited for.
TEST(ExpectedWaitOfTenants, ASlotOfATenantWithMoreIsNotWaitedFor) {
  const HoldTimeEstimator holds;
  const auto wait = [&](int of_many, bool preempts, Waiter waiter) {
    std::vector<Holder> holders(8, {.may_generate = 1000, .tenant = kOne});
    for (int i = 0; i < of_many; ++i) holders[static_cast<size_t>(i)].tenant = kMany;
    waiter.rank = 100;
    return expected_wait(waiter, {.line = {},
                                  .holders = holders,
                                  .slots = 8,
                                  .prompt_rate = 100,
                                  .step_seconds = 0.1,
                                  .holds = holds,
                                  .preempts = preempts});
  };
  EXPECT_EQ(wait(7, true, waiter(kOne)), 0);
  EXPECT_EQ(wait(5, true, waiter(kOne)), 0);
  EXPECT_GE(wait(7, false, waiter(kOne)), 10);
  EXPECT_GE(wait(4, true, waiter(kOne)), 10) << "both have half";
  EXPECT_GE(wait(7, true, waiter(kMany)), 10);
  EXPECT_GE(wait(7, true, waiter(kOne, 1, 1)), 10) << "it may have no more";
  EXPECT_EQ(wait(4, true, waiter(kOne, 2)), 0) << "of twice the weight";
}

// Nor what another connection of its address has there; prompts in slots go in their order.
TEST(ExpectedWaitOfTenants, ALongLineOfAnotherConnectionIsNotWaitedFor) {
  const HoldTimeEstimator holds;
  const TenantId many = visitor(0, 1), one = visitor(0, 2);
  std::vector<Waiter> line;
  for (int i = 0; i < 64; ++i) line.push_back({.rank = -i, .tokens = 1000, .tenant = many});
  std::vector<Holder> holders(14, {.tokens = 0, .may_generate = 1000, .tenant = many});
  const auto wait = [&](TenantId tenant) {
    return expected_wait({.rank = 100, .tokens = 10, .tenant = tenant}, {.line = line,
                                                                         .holders = holders,
                                                                         .slots = 16,
                                                                         .prompt_rate = 100,
                                                                         .step_seconds = 0.1,
                                                                         .holds = holds});
  };
  EXPECT_LE(wait(one), 0.1);
  EXPECT_GE(wait(many), 100);
  holders.push_back({.rank = 1, .prompt = true, .tokens = 20, .tenant = many});
  EXPECT_NEAR(wait(one), 0.5, 0.01) << "the prompt in a slot that came first, and of the line as "
                                       "many tokens as with it";
}

}  // namespace recurve::shares_test
