// Tenants whose requests need pages, of which there are fewer than all need.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/support/engine/engine_on_disk.h"
#include "tests/support/engine/pages_fixture.h"

namespace recurve::testing::pages_of_tenants_test {

using ::testing::HasSubstr;
using Kind = SessionCommand::Kind;

using PagesOfTenants = PagesTest;

// A tenant whose requests hold all pages makes way for another one's.
TEST_P(PagesOfTenants, ATenantWithFewPagesStartsAtOnce) {
  EngineHarness harness = engine(options(8, 12));
  std::vector<AnswerPtr> flood;
  for (uint64_t i = 0; i < 6; ++i) {
    Request one = request(60, 250, i);
    one.caller.tenant = 1;
    flood.push_back(harness.submit(one));
  }
  harness.step(100);
  ASSERT_LT(harness.stats().pages_free, 3);
  Request light = request(100, 10, 77);
  light.caller.tenant = 2;
  const AnswerPtr answer = harness.submit(light);
  for (int i = 0; i < 12; ++i) {
    harness.step();
    harness.wait_for_copies();
  }
  answer->take();
  EXPECT_FALSE(answer->tokens.empty());
  harness.run_until_idle();
  answer->take();
  EXPECT_EQ(answer->bits(), alone(light));
  for (uint64_t i = 0; i < 6; ++i) {
    flood[i]->take();
    EXPECT_EQ(flood[i]->bits(), alone(request(60, 250, i)));
  }
}

// The slots too, though there are pages for all: the other tenant's second request while its first
// one still runs, and the next ones without another preemption.
TEST_P(PagesOfTenants, ATenantWithFewSlotsStartsAtOnce) {
  EngineHarness harness = engine(options(8, 64));
  const auto submit = [&](TenantId tenant, Request one) {
    one.caller.tenant = tenant;
    return harness.submit(std::move(one));
  };
  std::vector<AnswerPtr> flood;
  for (uint64_t i = 0; i < 10; ++i) flood.push_back(submit(1, request(60, 250, i)));
  harness.step(8);
  ASSERT_EQ(harness.stats().slots_free, 0);
  const AnswerPtr stream = submit(2, request(10, 200, 70));
  for (uint64_t i = 0; i < 5; ++i) {
    const AnswerPtr light = submit(2, request(10, 2, 80 + i));
    for (int step = 0; step < 12; ++step) {
      harness.step();
      harness.wait_for_copies();
    }
    light->take();
    EXPECT_TRUE(light->ended()) << i;
  }
  EXPECT_EQ(harness.stats().preemptions, 2);
  harness.run_until_idle();
  stream->take();
  EXPECT_EQ(stream->bits(), alone(request(10, 200, 70)));
  for (uint64_t i = 0; i < flood.size(); ++i) {
    flood[i]->take();
    EXPECT_EQ(flood[i]->bits(), alone(request(60, 250, i)));
  }
}

// At any time, however often the requests of the flood have given way before: where it has all
// slots, where it has all pages, and where its preempted states use all the memory for them.
TEST_P(PagesOfTenants, ATenantWithLittleNeverWaitsForTheEndOfAFlood) {
  constexpr int kLight = 50, kBetween = 3, kSteps = 16;
  const auto heavy = [](uint64_t i) { return request(60, 900, i); };  // 15 pages
  const auto page = static_cast<int64_t>(model().state_layout().page_bytes());
  for (const auto& [pages, preempted] : {std::pair(32, 1000), {128, 1000}, {32, 64}}) {
    HarnessOptions limits = options(8, pages);
    limits.preempted_bytes = preempted * page;
    EngineHarness harness = engine(limits);
    const auto step = [&] {
      harness.step();
      harness.wait_for_copies();
    };
    const auto submit = [&](TenantId tenant, Request one) {
      one.caller.tenant = tenant;
      return harness.submit(std::move(one));
    };
    std::vector<std::pair<uint64_t, AnswerPtr>> flood;
    for (uint64_t i = 0; i < 10; ++i) flood.emplace_back(i, submit(1, heavy(i)));
    for (uint64_t i = 0; i < kLight; ++i) {
      for (int s = 0; s < kBetween; ++s) step();
      const AnswerPtr one = submit(2, request(150, 40, i)), other = submit(2, request(130, 2, i));
      int steps = 0;
      for (; !other->ended() && steps < 10 * kSteps; ++steps) {
        step();
        one->take();
        other->take();
      }
      EXPECT_LE(steps, kSteps) << i << " with " << pages << " pages, " << preempted
                               << " of preempted ones";
      while (!one->ended()) {
        step();
        one->take();
      }
    }
    EXPECT_GT(harness.stats().preemptions, 2 * kMostPreemptions);
    harness.run_until_idle();
    for (const auto& [i, answer] : flood) {
      answer->take();
      EXPECT_EQ(answer->bits(), alone(heavy(i))) << i;
    }
  }
}

// Whatever it asks for at once, with choices and sessions; others have the rest.
TEST_P(PagesOfTenants, ATenantHasNoMorePagesThanItsQuota) {
  constexpr int kQuota = 5, kAll = 20;
  EngineHarness harness = engine(options(8, kAll));
  Identity bounded = caller_of("bounded");
  bounded.limits.page_bytes =
      kQuota * static_cast<int64_t>(model().state_layout().page_bytes()) + 1;
  harness.command({.kind = Kind::kOpen, .caller = bounded, .name = "s"});
  const auto of = [&](size_t length, int max_tokens, uint64_t seed,
                      const std::string& session = "") {
    Request one = request(length, max_tokens, seed, session);
    one.caller = bounded;
    return one;
  };
  const AnswerPtr refused = harness.ask(of(200, 121, 1));
  EXPECT_EQ(refused->reason(), EndReason::kInvalid);
  EXPECT_THAT(refused->ending->message,
              HasSubstr("page_bytes of tenant \"bounded\" holds 320 tokens: raise it to " +
                        std::to_string(6 * model().state_layout().page_bytes())));
  Request by_default = of(200, 4096, 1);
  by_default.max_tokens_is_default = true;
  EXPECT_EQ(harness.ask(std::move(by_default))->tokens.size(), 120u);
  harness.ask(of(60, 10, 2, "s"));

  std::vector<std::pair<Request, AnswerPtr>> answers;
  for (uint64_t i = 0; i < 6; ++i) {
    const Request one = of(20 + 30 * i, 70, 10 + i);
    answers.emplace_back(one, harness.submit(one));
  }
  const Request turn = of(100, 60, 20, "s");
  answers.emplace_back(turn, harness.submit(turn));
  std::vector<AnswerPtr> choices = harness.submit(of(60, 70, 30), 4);
  // Idle, the session has pages too.
  const auto idle = [&] {
    return StateLayout::pages(harness.stats().slots_idle > 0 ? 69 + 160 : 0);
  };
  int64_t most = 0;
  for (bool works = true; works;) {
    works = harness.step();
    harness.wait_for_copies();
    const EngineStats now = harness.stats();
    most = std::max(most, now.pages - now.pages_free - idle());
  }
  harness.run_until_idle();
  EXPECT_LE(most, kQuota);
  EXPECT_GE(most, kQuota - 1) << "or the test says nothing";
  for (const auto& [asked, answer] : answers) {
    answer->take();
    if (asked.session.empty()) {
      EXPECT_EQ(answer->bits(), alone(asked));
    }
    EXPECT_EQ(answer->reason(), EndReason::kLength);
  }
  for (size_t c = 0; c < choices.size(); ++c) {
    choices[c]->take();
    Request same = of(60, 70, 30);
    same.sampling.seed += c;
    EXPECT_EQ(choices[c]->bits(), alone(same));
  }
}

INSTANTIATE_TEST_SUITE_P(Growing, PagesOfTenants, all_pages_params(), pages_param_name);

}  // namespace recurve::testing::pages_of_tenants_test
