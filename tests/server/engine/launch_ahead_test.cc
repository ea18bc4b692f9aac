// Steps that are launched before the tokens of the one before them are delivered.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/engine/engine_harness.h"
#include "tests/support/engine/scripted_constraint.h"

namespace recurve::testing::launch_ahead_test {

using ::testing::SizeIs;
using Kind = SessionCommand::Kind;

constexpr int32_t kEos = 11;

Request request(size_t length, int max_tokens, uint64_t seed = 0, const std::string& session = "") {
  return NullHarness::request(length, max_tokens, seed, session);
}

HarnessOptions ahead(int slots = 4) {
  return {.slots = slots, .eos = {kEos}, .launch_ahead = true};
}

TEST(LaunchAhead, TokensComeOneStepLater) {
  NullHarness harness(ahead());
  AnswerPtr answer = harness->submit(request(5, 3));
  for (const size_t tokens : {0, 1, 2}) {
    EXPECT_TRUE(harness->step());
    answer->take();
    EXPECT_THAT(answer->tokens, SizeIs(tokens));
  }
  EXPECT_THAT(harness.steps(), SizeIs(3)) << "a token that is not wanted is not computed";
  EXPECT_TRUE(harness->step());
  answer->take();
  EXPECT_EQ(answer->reason(), EndReason::kLength);
  EXPECT_FALSE(harness->step());
  EXPECT_THAT(harness.steps(), SizeIs(3));
}

// Whose next mask depends on its last token, that goes without a step; the other does not.
TEST(LaunchAhead, GoesOnForWhoHasNoConstraint) {
  NullHarness harness(ahead());
  Request kept = request(5, 20);
  kept.sampling.constraint = std::make_shared<ScriptedConstraint>(
      std::vector<ScriptedConstraint::Place>(20, {.ids = {3, 4}}));
  const AnswerPtr constrained = harness->submit(kept), free = harness->submit(request(5, 10));
  int steps = 0;
  while (!free->ended() && steps < 100) {
    harness->step();
    free->take();
    constrained->take();
    ++steps;
  }
  EXPECT_EQ(steps, 11) << "as of TokensComeOneStepLater: one a step, one step later";
  EXPECT_THAT(free->tokens, SizeIs(10));
  EXPECT_THAT(constrained->tokens, SizeIs(::testing::Le(6)));
}

TEST(LaunchAhead, ChangesNoToken) {
  NullHarness harness(ahead());
  Request drawn = request(20, 9, 3);
  drawn.sampling.temperature = 0.8f;
  drawn.sampling.frequency_penalty = 0.5f;
  drawn.sampling.presence_penalty = -0.25f;
  drawn.sampling.repetition_penalty = 1.3f;
  drawn.sampling.prompt_logprobs = 2;
  const AnswerPtr want = harness.alone(drawn);
  AnswerPtr first = harness->submit(drawn), second = harness->submit(drawn);
  harness->submit(request(13, 40));
  harness->run_until_idle();
  for (AnswerPtr* answer : {&first, &second}) {
    (*answer)->take();
    EXPECT_EQ((*answer)->bits(), want->bits());
    EXPECT_EQ((*answer)->prompt_bits(), want->prompt_bits());
  }
}

// The step that was launched meanwhile must not have absorbed the last token.
TEST(LaunchAhead, AnAnswerThatEndsByItselfLeavesItsLastTokenPending) {
  NullHarness harness(ahead()), plain({.eos = {kEos}});
  for (EngineHarness* engine : {&*harness, &*plain}) engine->open("s");
  for (uint64_t turn = 0; turn < 6; ++turn) {
    Request ending = request(3, 30, turn, "s");
    ending.sampling.temperature = 1;
    ending.sampling.seed = turn;
    ending.sampling.logit_bias = {{kEos, 6.0f}};
    ending.sampling.min_tokens = 2;
    AnswerPtr answer = harness->ask(ending), want = plain->ask(ending);
    EXPECT_EQ(answer->bits(), want->bits()) << "turn " << turn;
    EXPECT_EQ(answer->reason(), want->reason());
    EXPECT_EQ(answer->ending->session_position, want->ending->session_position);
    EXPECT_EQ(harness->get("s").position, plain->get("s").position);
    EXPECT_EQ(harness->get("s").pending_token, plain->get("s").pending_token);
  }
}

// A session is free as soon as its client has seen the end, though a step is under way.
TEST(LaunchAhead, TheNextTurnFollowsAtOnce) {
  NullHarness harness(ahead(1));
  harness->open("s");
  AnswerPtr other = harness->submit(request(3, 6, 1, "s"));
  while (!other->ended()) {
    harness->step();
    other->take();
  }
  AnswerPtr next = harness->ask(request(3, 2, 2, "s"));
  EXPECT_EQ(next->reason(), EndReason::kLength);
}

TEST(LaunchAhead, WhoIsCancelledEndsWithAllThatWasUnderWay) {
  NullHarness harness(ahead());
  harness->open("s"), harness->open("short");
  AnswerPtr cancelled = harness->submit(request(5, 100, 1, "s"));
  harness->step(7);
  cancelled->stream()->cancel();
  harness->run_until_idle();
  cancelled->take();
  EXPECT_EQ(cancelled->reason(), EndReason::kCancelled);
  const auto tokens = static_cast<int>(cancelled->tokens.size());
  EXPECT_EQ(tokens, 7);
  EXPECT_EQ(cancelled->ending->generated_tokens, tokens);
  EXPECT_EQ(harness->get("s").position, 5 + tokens - 1);
  harness->ask(request(5, tokens, 1, "short"));
  EXPECT_EQ(harness->ask(request(3, 5, 2, "s"))->bits(),
            harness->ask(request(3, 5, 2, "short"))->bits());
}

TEST(LaunchAhead, EachChoiceIsTheRequestWithItsSeed) {
  NullHarness harness(ahead(5));
  Request target = request(21, 7, 5);
  target.sampling.temperature = 1;
  target.sampling.repetition_penalty = 1.2f;
  std::vector<AnswerPtr> choices = harness->submit(target, 4);
  harness->run_until_idle();
  for (AnswerPtr& choice : choices) {
    choice->take();
    EXPECT_EQ(choice->bits(), harness.alone(target)->bits());
    ++target.sampling.seed;
  }
}

TEST(LaunchAhead, AbandonedRequestsEndToo) {
  NullHarness harness(ahead());
  Request endless = request(5, 1 << 30);
  endless.sampling.ignore_eos = true;
  AnswerPtr answer = harness->submit(endless);
  harness->start();
  ASSERT_TRUE(answer->wait());
  harness->engine().abandon();
  answer->wait_for_end();
  EXPECT_EQ(answer->reason(), EndReason::kDraining);
  EXPECT_EQ(answer->ending->generated_tokens, static_cast<int64_t>(answer->tokens.size()));
  harness->join();
}

}  // namespace recurve::testing::launch_ahead_test
