#include "server/scheduler/admission.h"

#include <gtest/gtest.h>

#include <vector>

namespace recurve::admission_table_test {

std::vector<Waiter> line_of(const std::vector<int64_t>& tokens) {
  std::vector<Waiter> line;
  for (const int64_t many : tokens) {
    line.push_back({.rank = static_cast<int64_t>(line.size()), .tokens = many});
  }
  return line;
}

TEST(NextInTurn, IsTheFirstOrByTurnsOneThatIsFarShorter) {
  const struct {
    std::vector<int64_t> tokens;
    size_t by_turns;
  } cases[] = {
      {{5}, 0},
      {{80, 10}, 1},          // eight times shorter is far shorter
      {{79, 10}, 0},          // and not quite is not
      {{80, 10, 10}, 1},      // of equals the one that came first
      {{800, 99, 10, 9}, 3},  // the shortest, in any order of arrival
      {{8, 1000, 2}, 0},
      {{0, 0}, 0},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(next_in_turn(line_of(c.tokens), false), 0u);
    EXPECT_EQ(next_in_turn(line_of(c.tokens), true), c.by_turns) << c.tokens.front();
  }
}

class ExpectedWaitInLine : public ::testing::Test {
 protected:
  // Two slots, 100 prompt tokens a second, a token of a stream in 0.1 s.
  double wait(const Waiter& waiter, const std::vector<Waiter>& line,
              const std::vector<Holder>& holders) const {
    return expected_wait(waiter, {.line = line,
                                  .holders = holders,
                                  .slots = 2,
                                  .prompt_rate = 100,
                                  .step_seconds = 0.1,
                                  .holds = holds_});
  }
  HoldTimeEstimator holds_;  // has seen nothing: everything is generated, no hold is known
};

TEST_F(ExpectedWaitInLine, CountsSlotsThatHaveToComeFree) {
  const Waiter one{.rank = 10, .tokens = 50};
  const Holder decodes{.may_generate = 20}, shorter{.may_generate = 5};
  EXPECT_EQ(wait(one, {}, {}), 0);
  EXPECT_EQ(wait(one, {}, {decodes}), 0) << "one is free";
  EXPECT_DOUBLE_EQ(wait(one, {}, {decodes, shorter}), 0.5) << "the shorter ends";
  EXPECT_EQ(wait({.rank = 10, .tokens = 50, .has_slot = true}, {}, {decodes, shorter}), 0);
  EXPECT_DOUBLE_EQ(wait(one, {{.rank = 1, .tokens = 1}}, {decodes, shorter}), 2)
      << "the first goes to who came first";
  EXPECT_DOUBLE_EQ(wait(one, {{.rank = 11, .tokens = 50}}, {decodes, shorter}), 0.5)
      << "who came later does not count";
  EXPECT_DOUBLE_EQ(wait(one, {}, {decodes, {.prompt = true, .tokens = 90, .may_generate = 1}}), 1)
      << "its prompt, and its token";
}

TEST_F(ExpectedWaitInLine, CountsPromptsThatAreAbsorbedBefore) {
  const Waiter one{.rank = 10, .tokens = 50};
  const Holder prompt{.rank = 1, .prompt = true, .tokens = 300};
  EXPECT_DOUBLE_EQ(wait(one, {}, {prompt}), 3);
  EXPECT_DOUBLE_EQ(wait(one, {}, {{.rank = 11, .prompt = true, .tokens = 300}}), 0);
  EXPECT_DOUBLE_EQ(wait({.rank = 10, .tokens = 10}, {}, {prompt}), 0.1)
      << "far shorter: every second turn is its own";
  EXPECT_DOUBLE_EQ(
      wait({.rank = 10, .tokens = 10, .has_slot = true}, {{.rank = 5, .tokens = 4}}, {prompt}),
      0.18)
      << "but for who is shorter still";
}

TEST(Judge, RefusesWhoWouldWaitTooLongForOthers) {
  // 100 prompt tokens a second.
  const FirstTokenBound one{.seconds = 1}, ten{.seconds = 10};
  const struct {
    const char* what;
    int64_t tokens;
    double wait;
    AdmissionBounds bounds;
    bool admitted;
    double within, retry;
  } cases[] = {
      {"no bound", 100, 99, {}, true, 0, 0},
      {"no request in the way", 100'000, 0, {.server = one}, true, 1, 0},
      {"in time", 100, 6.9, {.server = ten}, true, 10, 0},
      {"late by what is beyond 0.8 of the bound", 100, 7.5, {.server = ten}, false, 10, 0.5},
      {"its own prompt is too long, others not", 2000, 1.9, {.server = ten}, true, 10, 0},
      {"its own prompt is too long, and others", 2000, 3, {.server = ten}, false, 10, 1},
      {"before its deadline", 100, 2, {.server = ten, .deadline_seconds = 3}, true, 10, 0},
      {"after it", 100, 2.5, {.server = ten, .deadline_seconds = 3}, false, 3, 0.5},
  };
  for (const auto& c : cases) {
    const Verdict verdict = judge({.tokens = c.tokens}, c.wait, 100, c.bounds);
    EXPECT_EQ(verdict.admitted, c.admitted) << c.what;
    EXPECT_DOUBLE_EQ(verdict.within_seconds, c.within) << c.what;
    EXPECT_DOUBLE_EQ(verdict.retry_seconds, c.retry) << c.what;
    EXPECT_EQ(verdict.deadline, !c.admitted && c.bounds.deadline_seconds.has_value()) << c.what;
    if (!c.admitted) {
      const double expected = c.wait + static_cast<double>(c.tokens) / 100;
      EXPECT_DOUBLE_EQ(verdict.first_token_seconds, verdict.deadline ? expected : expected / 0.8);
      EXPECT_GT(verdict.first_token_seconds, verdict.within_seconds) << c.what;
    }
  }
}

TEST(Judge, AllowsSomeTimesWhatARequestTakesAloneAndABurst) {
  const AdmissionBounds bounds{.server = {.seconds = 0.5, .times_alone = 4, .burst_seconds = 10}};
  const AdmissionBounds burst{.server = bounds.server, .burst = true};
  const struct {
    int64_t tokens;  // 100 a second
    double wait;
    AdmissionBounds bounds;
    bool admitted;
    double within;
  } cases[] = {
      {5, 0.34, bounds, true, 0.5}, {5, 0.36, bounds, false, 0.5}, {200, 4.3, bounds, true, 8},
      {200, 4.5, bounds, false, 8}, {5, 7.9, burst, true, 10},     {5, 8, burst, false, 10},
      {400, 8.7, burst, true, 16},  {5, 0, bounds, true, 0.5},
  };
  for (const auto& c : cases) {
    const Verdict verdict = judge({.tokens = c.tokens}, c.wait, 100, c.bounds);
    EXPECT_EQ(verdict.admitted, c.admitted) << c.tokens << " tokens after " << c.wait << " s";
    EXPECT_DOUBLE_EQ(verdict.within_seconds, c.within);
  }
}

TEST(BurstWatch, FindsTheFirstSecondOfWaitingAfterTenWithout) {
  BurstWatch watch;
  EXPECT_FALSE(watch.observe(0, 1)) << "no request waits";
  EXPECT_TRUE(watch.observe(0.1, 2));
  EXPECT_TRUE(watch.observe(5, 3));
  EXPECT_FALSE(watch.observe(0.1, 3.1));
  EXPECT_FALSE(watch.observe(0.1, 13));
  EXPECT_FALSE(watch.observe(0, 20)) << "does not count";
  EXPECT_TRUE(watch.observe(0.1, 23.1));
  EXPECT_FALSE(watch.observe(0.1, 24.2));
}

}  // namespace recurve::admission_table_test
