// More arrives than can be served: who is refused, when, and who goes first.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/engine/engine_harness.h"

namespace recurve::testing::overload_test {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;

constexpr int kChunk = NullHarness::kChunk;

Request request(size_t length, int max_tokens, uint64_t seed = 0) {
  return NullHarness::request(length, max_tokens, seed);
}

// An engine whose every step takes as long as it is told, by a clock that nothing else moves.
class PacedHarness {
 public:
  PacedHarness(milliseconds step, const HarnessOptions& options)
      : backend_(make_backend("reference")),
        model_(NullHarness::kVocab,
               {.chunk = kChunk, .on_step = [step](const StepBatch&) { Clock::pass(step); }}),
        harness_(model_, *backend_, options) {}
  EngineHarness* operator->() { return &harness_; }

 private:
  const HeldClock held_;
  std::unique_ptr<Backend> backend_;
  NullModel model_;
  EngineHarness harness_;
};

TEST(EngineOverload, WhoWouldWaitTooLongIsRefusedAtOnceAndToldWhenToComeAgain) {
  PacedHarness harness(milliseconds(5), {.slots = 1, .first_token = {.seconds = 1}});
  AnswerPtr running = harness->submit(request(3, 1000));  // 5 s
  harness->step(20);
  AnswerPtr refused = harness->submit(request(3, 1));
  harness->step();
  refused->take();
  EXPECT_EQ(refused->reason(), EndReason::kOverloaded);
  EXPECT_FALSE(refused->accepted);
  EXPECT_THAT(refused->ending->message, HasSubstr("the limit is 1 s:"));
  // 980 steps less what it may wait.
  EXPECT_THAT(refused->ending->retry_seconds, AllOf(Ge(0.95 * 4.9 - 1), Le(4.9)));
  EXPECT_EQ(harness->queue().waiting(), 0);
  running->take();
  EXPECT_FALSE(running->ended());
  running->stream()->cancel();
}

TEST(EngineOverload, ARewindThatWouldWaitTooLongLeavesItsSessionAsItWas) {
  PacedHarness harness(milliseconds(5), {.slots = 1, .first_token = {.seconds = 1}});
  NullHarness quiet;
  const auto turn = [](size_t length, uint64_t seed) {
    return NullHarness::request(length, 5, seed, "s");
  };
  const SessionCommand open{
      .kind = SessionCommand::Kind::kOpen, .name = "s", .rewind_tokens = 1000};
  const SessionCommand rewind{.kind = SessionCommand::Kind::kRewind, .name = "s", .position = 20};
  harness->command(open);
  quiet->command(open);
  harness->ask(turn(30, 1));
  quiet->ask(turn(30, 1));
  AnswerPtr running = harness->submit(request(3, 1000));
  harness->step(20);
  const SessionResult refused = harness->command(rewind);
  EXPECT_EQ(refused.reason, EndReason::kOverloaded);
  EXPECT_FALSE(harness->get("s").busy);
  EXPECT_EQ(harness->get("s").position, 34);
  running->stream()->cancel();
  harness->run_until_idle();
  EXPECT_EQ(harness->ask(turn(3, 4))->bits(), quiet->ask(turn(3, 4))->bits());
  EXPECT_EQ(harness->command(rewind).reason, EndReason::kDone);
}

TEST(EngineOverload, WhoWaitsForLessIsAccepted) {
  PacedHarness harness(milliseconds(1), {.slots = 1, .first_token = {.seconds = 20}});
  AnswerPtr running = harness->submit(request(3, 40));
  harness->step(10);
  AnswerPtr next = harness->submit(request(3, 1));
  harness->run_until_idle();
  next->take();
  EXPECT_EQ(next->reason(), EndReason::kLength);
}

// However long its own prompt and answer are: no other request delays it.
TEST(EngineOverload, NothingIsRefusedWhereSlotsAreFree) {
  PacedHarness harness(milliseconds(1), {.slots = 2, .first_token = {.seconds = 0.001}});
  AnswerPtr running = harness->submit(request(3, 100000));
  harness->step(10);
  Request with_deadline = request(3, 100000);
  with_deadline.deadline = Clock::now() + milliseconds(200);
  AnswerPtr next = harness->submit(std::move(with_deadline));
  harness->step();
  next->take();
  EXPECT_TRUE(next->accepted);
  running->stream()->cancel(), next->stream()->cancel();
}

TEST(EngineOverload, WhoWouldWaitUntilItsDeadlineIsRefused) {
  PacedHarness harness(milliseconds(5), {.slots = 1, .first_token = {.seconds = 1000}});
  AnswerPtr running = harness->submit(request(3, 1000));
  harness->step(20);
  Request urgent = request(3, 1);
  urgent.deadline = Clock::now() + seconds(1);
  AnswerPtr refused = harness->submit(std::move(urgent)), patient = harness->submit(request(3, 1));
  harness->step();
  refused->take(), patient->take();
  EXPECT_EQ(refused->reason(), EndReason::kOverloaded);
  EXPECT_THAT(refused->ending->message, HasSubstr("deadline"));
  EXPECT_TRUE(patient->accepted);
  running->stream()->cancel();
}

// Prompts are the work here: there are slots enough.
TEST(EngineOverload, APromptWaitsForThoseBeforeItAndAShortOneDoesNot) {
  PacedHarness harness(milliseconds(5), {.slots = 8, .first_token = {.seconds = 1}});
  std::vector<AnswerPtr> prompts;  // two chunks a step: 50 steps each
  for (uint64_t i = 0; i < 3; ++i) prompts.push_back(harness->submit(request(100 * kChunk, 1, i)));
  harness->step(20);
  for (uint64_t i = 3; i < 6; ++i) prompts.push_back(harness->submit(request(1000 * kChunk, 1, i)));
  harness->step();
  AnswerPtr refused = harness->submit(request(2000 * kChunk, 1, 9));
  AnswerPtr brief = harness->submit(request(1, 1));
  harness->step();
  refused->take(), brief->take();
  EXPECT_EQ(refused->reason(), EndReason::kOverloaded);
  EXPECT_TRUE(brief->accepted);
  for (AnswerPtr& prompt : prompts) prompt->stream()->cancel();
}

// As one with a small machine sees it: steps of 5 ms with two chunks, so each prompt takes 2.5 s.
TEST(EngineOverload, TheAutomaticBoundLetsLongPromptsWaitForEachOther) {
  PacedHarness harness(milliseconds(5), {.slots = 8, .first_token = kAutomaticFirstTokenBound});
  const auto accepted = [&](const AnswerPtr& answer) {
    harness->step();
    answer->take();
    return answer->accepted;
  };
  const AnswerPtr warm_up = harness->submit(request(20 * kChunk, 1));
  harness->run_until_idle();
  std::vector<AnswerPtr> prompts;
  prompts.push_back(harness->submit(request(1000 * kChunk, 1, 1)));
  harness->step();
  prompts.push_back(harness->submit(request(1000 * kChunk, 1, 2)));
  EXPECT_TRUE(accepted(prompts.back()));
  prompts.push_back(harness->submit(request(300 * kChunk, 1, 3)));
  EXPECT_TRUE(accepted(prompts.back())) << "of a burst, after 5 s";
  harness->step(210);
  prompts.push_back(harness->submit(request(1000 * kChunk, 1, 4)));
  EXPECT_TRUE(accepted(prompts.back())) << "waits for less than twice its own time";
  const AnswerPtr refused = harness->submit(request(200 * kChunk, 1, 5));
  EXPECT_FALSE(accepted(refused)) << "waits for ten times its own time, without a burst";
  EXPECT_EQ(refused->reason(), EndReason::kOverloaded);
  for (const AnswerPtr& prompt : prompts) prompt->stream()->cancel();
}

// The answers' numbers in the order in which they get their only slot.
std::vector<int> order_of(EngineHarness& harness, const std::vector<AnswerPtr>& answers) {
  std::vector<int> order;
  for (bool work = true; work;) {
    work = harness.step();
    for (size_t i = 0; i < answers.size(); ++i) {
      const bool had_begun = !answers[i]->tokens.empty();
      answers[i]->take();
      if (!had_begun && !answers[i]->tokens.empty()) order.push_back(static_cast<int>(i));
    }
  }
  return order;
}

Request important(int priority, seconds earlier = seconds(0)) {
  Request important = request(3, 2);
  important.priority = priority;
  important.arrival -= earlier;
  return important;
}

TEST(EngineOverload, PriorityGoesFirstAndTimeCountsToo) {
  NullHarness harness({.slots = 1});
  AnswerPtr running = harness->submit(request(3, 5));
  harness->step();
  std::vector<AnswerPtr> answers;
  answers.push_back(harness->submit(important(0)));
  answers.push_back(harness->submit(important(-1)));
  answers.push_back(harness->submit(important(3)));
  answers.push_back(harness->submit(important(1)));
  answers.push_back(harness->submit(important(0, seconds(25))));
  EXPECT_THAT(order_of(*harness, answers), ElementsAre(2, 4, 3, 0, 1));
}

TEST(EngineOverload, PriorityWaitsForLess) {
  PacedHarness harness(milliseconds(5), {.slots = 1, .first_token = {.seconds = 3}});
  AnswerPtr first = harness->submit(request(3, 4));
  harness->run_until_idle();
  AnswerPtr running = harness->submit(request(3, 100));
  std::vector<AnswerPtr> line;
  for (uint64_t i = 0; i < 20; ++i) line.push_back(harness->submit(request(3, 1000, i)));
  harness->step(10);
  AnswerPtr plain = harness->submit(important(0)), more = harness->submit(important(1));
  harness->step();
  more->take();
  EXPECT_TRUE(more->accepted) << "it waits for the running one alone";
  running->stream()->cancel();
  for (AnswerPtr& answer : line) answer->stream()->cancel();
}

TEST(EngineOverload, EverySecondTurnInTheLineGoesToAFarShorterPrompt) {
  NullHarness harness({.slots = 1});
  AnswerPtr running = harness->submit(request(3, 2));
  harness->step();
  std::vector<AnswerPtr> answers;
  for (uint64_t i = 0; i < 3; ++i) answers.push_back(harness->submit(request(160, 1, i)));
  for (uint64_t i = 0; i < 3; ++i) answers.push_back(harness->submit(request(20, 1, i)));
  answers.push_back(harness->submit(request(21, 1)));
  std::vector<int> order = order_of(*harness, answers);
  ASSERT_EQ(order.size(), 7u);
  // The running one had the first turn in order.
  EXPECT_THAT(order, ElementsAre(3, 0, 4, 1, 5, 2, 6));
}

TEST(EngineOverload, WhoHasWaitedTwiceAsLongAsExpectedIsGivenUp) {
  PacedHarness harness(milliseconds(1), {.slots = 1, .first_token = {.seconds = 0.1}});
  AnswerPtr running = harness->submit(request(3, 100000));  // nothing is known when the next comes
  AnswerPtr waiting = harness->submit(request(3, 1));
  const Clock::time_point began = Clock::now();
  while (!waiting->ended() && Clock::now() - began < seconds(30)) {
    harness->step();
    waiting->take();
  }
  EXPECT_TRUE(waiting->accepted);
  EXPECT_EQ(waiting->reason(), EndReason::kOverloaded);
  EXPECT_GE(waiting->ending->queue_seconds, 0.2);
  EXPECT_EQ(harness->queue().waiting(), 0);
  running->stream()->cancel();
}

// ---- slow readers

// Reads whenever there is something; true once it has ended.
bool read_to_end(EngineHarness& harness, Answer& answer) {
  for (int steps = 0; steps < 1000000 && !answer.ended(); ++steps) {
    harness.step();
    answer.take();
  }
  return answer.ended();
}

TEST(EngineOverload, AClientThatDoesNotReadDelaysOnlyItself) {
  constexpr int kTokens = 20000;
  NullHarness harness({.slots = 2}), quiet({.slots = 1});
  AnswerPtr expected = quiet->submit(request(3, kTokens));
  ASSERT_TRUE(read_to_end(*quiet, *expected));
  AnswerPtr slow = harness->submit(request(3, kTokens));
  AnswerPtr reader = harness->submit(request(3, kTokens, 1));
  ASSERT_TRUE(read_to_end(*harness, *reader));
  EXPECT_FALSE(harness->step()) << "nothing is computed for who does not read";
  EXPECT_EQ(harness->stats().running, 1);
  const size_t bound = TokenStream::kMostUnreadBytes / sizeof(SampledToken) + 1;
  int takes = 0;
  for (size_t before = 0; !slow->ended(); ++takes) {
    slow->take();
    EXPECT_LE(slow->tokens.size() - before, bound);
    before = slow->tokens.size();
    harness->run_until_idle();
  }
  EXPECT_GE(takes, 4);
  EXPECT_EQ(slow->bits(), expected->bits());
}

TEST(EngineOverload, AScoredPromptWaitsForItsReaderToo) {
  NullHarness harness({.slots = 2});
  Request scored = request(20000, 0);
  scored.sampling.prompt_logprobs = 20;
  AnswerPtr answer = harness->submit(std::move(scored));
  int rounds = 0;
  for (; !answer->ended(); ++rounds) {
    harness->run_until_idle();
    answer->take();
  }
  EXPECT_GE(rounds, 10);
  EXPECT_EQ(answer->prompt.size(), 19999u);
}

TEST(EngineOverload, WhoNeverReadsLosesItsSlot) {
  NullHarness harness({.slots = 1});
  Request request_of_mute = request(3, 100000);
  request_of_mute.read_patience = milliseconds(50);
  AnswerPtr mute = harness->submit(std::move(request_of_mute));
  harness->run_until_idle();
  AnswerPtr next = harness->submit(request(3, 5));
  harness->start();
  next->wait_for_end();
  harness->join();
  mute->take();
  EXPECT_EQ(mute->reason(), EndReason::kStalled);
  EXPECT_TRUE(mute->stream()->stalled());
  EXPECT_EQ(next->reason(), EndReason::kLength);
  EXPECT_EQ(harness->stats().slots_free, 1);
}

}  // namespace recurve::testing::overload_test
