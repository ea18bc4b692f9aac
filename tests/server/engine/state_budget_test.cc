// Host memory of sessions and cached states of prompts: one budget, of which prompts have what
// sessions have not reserved.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/engine/engine_harness.h"

namespace recurve::testing::state_budget_test {

using Kind = SessionCommand::Kind;

constexpr int64_t kBallast = 1 << 20;
constexpr int kStates = 8;

class StateBudget : public ::testing::Test {
 protected:
  static int64_t session_bytes() {
    const NullModel model(NullHarness::kVocab, {.ballast = kBallast});
    return SessionStore::bytes_each(model.state_layout(), NullHarness::kVocab);
  }
  static HarnessOptions options(int64_t sessions, int64_t prefixes) {
    return {.slots = 2, .host_bytes = sessions, .prefix = {.bytes = prefixes}, .ballast = kBallast};
  }
  static std::string name(int s) { return "s" + std::to_string(s); }
  static Request prompt(uint64_t seed) { return NullHarness::request(20, 3, seed); }

  static int64_t reserved(NullHarness& harness) {
    int64_t bytes = 0;
    for (const SessionInfo& session : harness->command({.kind = Kind::kList}).sessions) {
      bytes += session.host_bytes;
    }
    return bytes;
  }
  static void cache_prompts(NullHarness& harness, uint64_t from, uint64_t count) {
    for (uint64_t seed = from; seed < from + count; ++seed) {
      EXPECT_EQ(harness->ask(prompt(seed))->reason(), EndReason::kLength);
      const EngineStats stats = harness->stats();
      EXPECT_LE(stats.prefix_bytes, stats.prefix_limit);
    }
  }
};

TEST_F(StateBudget, SessionsGetWhatPromptsHaveAtOnce) {
  const int64_t budget = kStates * session_bytes();
  NullHarness harness(options(budget, budget));
  cache_prompts(harness, 1, 20);
  EXPECT_GE(harness->stats().prefix_states, kStates - 2);
  EXPECT_EQ(harness->stats().prefix_limit, budget);
  const AnswerPtr cached = harness->ask(prompt(20));
  EXPECT_GT(cached->ending->prefix.tokens, 0);
  EXPECT_EQ(cached->bits(), harness.alone(prompt(20))->bits());

  for (int s = 0; s < kStates; ++s) {
    SCOPED_TRACE(s);
    ASSERT_EQ(harness->open(name(s)).reason, EndReason::kDone);
    EXPECT_LE(reserved(harness) + harness->stats().prefix_bytes, budget);
    const AnswerPtr turn = harness->submit(NullHarness::request(20, 3, 100, name(s)));
    while (harness->step()) {
      const EngineStats stats = harness->stats();
      EXPECT_LE(stats.host_bytes + stats.prefix_bytes, budget);
    }
    harness->run_until_idle();
    turn->take();
    EXPECT_EQ(turn->bits(), harness.alone(NullHarness::request(20, 3, 100))->bits());
    EXPECT_EQ(harness->stats().prefix_limit, budget - reserved(harness));
  }
  EXPECT_EQ(harness->stats().prefix_states, 0);
  EXPECT_EQ(harness->open("more").reason, EndReason::kExhausted);

  for (int s = 0; s < kStates; ++s) harness->command(Kind::kClose, name(s));
  cache_prompts(harness, 1, 20);
  EXPECT_GE(harness->stats().prefix_states, kStates - 2);
}

// Each has a separate limit, and the larger of the two is for both.
TEST_F(StateBudget, PromptsKeepWhatSessionsMayNotReserve) {
  const int64_t each = session_bytes();
  NullHarness harness(options(2 * each, 6 * each));
  for (int s = 0; s < 2; ++s) ASSERT_EQ(harness->open(name(s)).reason, EndReason::kDone);
  EXPECT_EQ(harness->open("more").reason, EndReason::kExhausted);
  cache_prompts(harness, 1, 20);
  EXPECT_EQ(harness->stats().prefix_limit, 6 * each - reserved(harness));
  EXPECT_GE(harness->stats().prefix_states, 3);

  NullHarness few(options(6 * each, 2 * each));
  cache_prompts(few, 1, 20);
  EXPECT_EQ(few->stats().prefix_limit, 2 * each);
  for (int s = 0; s < 4; ++s) ASSERT_EQ(few->open(name(s)).reason, EndReason::kDone);
  EXPECT_GT(few->stats().prefix_states, 0) << "there is memory for both";
}

}  // namespace recurve::testing::state_budget_test
