// How requests end, and that nothing else is disturbed by it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/session/state_transfer.h"
#include "tests/support/engine/engine_harness.h"
#include "tests/support/engine/state_bytes.h"

namespace recurve::testing::ending_test {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using namespace std::chrono_literals;

constexpr int32_t kEos = 11, kStop = 12, kPoison = NullHarness::kVocab - 1;

Request request(size_t length, int max_tokens, uint64_t seed = 0, const std::string& session = "") {
  return NullHarness::request(length, max_tokens, seed, session);
}

// Makes `id` the likeliest token by far.
Request wanting(Request request, int32_t id) {
  request.sampling.logit_bias = {{id, 1000.0f}};
  return request;
}

void expect_all_free(NullHarness& harness, int slots) {
  harness->run_until_idle();
  EXPECT_EQ(harness->stats().slots_free, slots);
  EXPECT_EQ(harness->stats().running, 0);
  EXPECT_EQ(harness->queue().waiting(), 0);
}

TEST(EngineEnding, LengthIsExact) {
  NullHarness harness;
  for (const int tokens : {1, 2, 17}) {
    AnswerPtr answer = harness->ask(request(9, tokens));
    EXPECT_EQ(answer->reason(), EndReason::kLength);
    EXPECT_THAT(answer->tokens, SizeIs(tokens));
    EXPECT_EQ(answer->ending->generated_tokens, tokens);
    EXPECT_EQ(answer->ending->session_position, 9 + tokens - 1) << "the last one is not absorbed";
    EXPECT_EQ(answer->ending->stop_id, -1);
  }
}

TEST(EngineEnding, NoTokensMeansAbsorbOnly) {
  NullHarness harness;
  harness->open("s");
  Request only = request(20, 0, 1, "s");
  AnswerPtr absorbed = harness->ask(only);
  EXPECT_EQ(absorbed->reason(), EndReason::kLength);
  EXPECT_THAT(absorbed->tokens, SizeIs(0));
  EXPECT_THAT(absorbed->prompt, SizeIs(0));
  EXPECT_EQ(harness->get("s").position, 20);

  only.session.clear();
  only.sampling.prompt_logprobs = 2;
  AnswerPtr scored = harness->ask(only);
  EXPECT_EQ(scored->reason(), EndReason::kLength);
  ASSERT_THAT(scored->prompt, SizeIs(19));
  for (size_t i = 0; i < 19; ++i) EXPECT_EQ(scored->prompt[i].id, only.prompt.ids[i + 1]);
  expect_all_free(harness, 3);
}

TEST(EngineEnding, EosEndsAndIsTheLastToken) {
  NullHarness harness({.eos = {3, kEos}});
  AnswerPtr answer = harness->ask(wanting(request(5, 10), kEos));
  EXPECT_EQ(answer->reason(), EndReason::kEos);
  EXPECT_EQ(answer->ending->stop_id, kEos);
  EXPECT_THAT(answer->ids(), ::testing::ElementsAre(kEos));
}

TEST(EngineEnding, EosBelongsToTheSession) {
  NullHarness harness({.eos = {kEos}});
  harness->open("s");
  harness->ask(wanting(request(5, 10, 0, "s"), kEos));
  EXPECT_EQ(harness->get("s").pending_token, kEos);
  EXPECT_EQ(harness->ask(request(0, 1, 0, "s"))->accepted->prompt_tokens, 1);
}

TEST(EngineEnding, IgnoredEosIsAnOrdinaryToken) {
  NullHarness harness({.eos = {kEos}});
  Request ignoring = wanting(request(5, 4), kEos);
  ignoring.sampling.ignore_eos = true;
  AnswerPtr answer = harness->ask(ignoring);
  EXPECT_EQ(answer->reason(), EndReason::kLength);
  EXPECT_THAT(answer->ids(), Each(kEos));
  EXPECT_THAT(answer->tokens, SizeIs(4));
}

TEST(EngineEnding, StopIdsEndToo) {
  NullHarness harness({.eos = {kEos}});
  Request stopping = wanting(request(5, 10), kStop);
  stopping.sampling.stop_ids = {kStop};
  AnswerPtr answer = harness->ask(stopping);
  EXPECT_EQ(answer->reason(), EndReason::kStopId);
  EXPECT_EQ(answer->ending->stop_id, kStop);
  EXPECT_THAT(answer->tokens, SizeIs(1));
}

TEST(EngineEnding, NothingEndsBeforeMinTokens) {
  NullHarness harness({.eos = {kEos}});
  for (const int32_t id : {kEos, kStop}) {
    Request patient = wanting(request(5, 10), id);
    patient.sampling.stop_ids = {kStop};
    patient.sampling.min_tokens = 3;
    AnswerPtr answer = harness->ask(patient);
    EXPECT_EQ(answer->reason(), id == kEos ? EndReason::kEos : EndReason::kStopId);
    EXPECT_THAT(answer->tokens, SizeIs(4)) << "three others, then the end";
  }
}

TEST(EngineEnding, ALastTokenThatIsEosEndsAsEos) {
  NullHarness harness({.eos = {kEos}});
  EXPECT_EQ(harness->ask(wanting(request(5, 1), kEos))->reason(), EndReason::kEos);
}

TEST(EngineEnding, CancelFreesTheSlotWithinOneStep) {
  NullHarness harness({.slots = 2});
  AnswerPtr decoding = harness->submit(request(5, 1000)),
            mid_prompt = harness->submit(request(500, 5));
  harness->step();
  AnswerPtr waiting = harness->submit(request(5, 5, 7));
  harness->step(2);
  EXPECT_EQ(harness->stats().running, 2);
  decoding->take();
  EXPECT_FALSE(decoding->tokens.empty());
  for (Answer* answer : {decoding.get(), mid_prompt.get()}) answer->stream()->cancel();
  harness->step();
  decoding->take(), mid_prompt->take(), waiting->take();
  EXPECT_EQ(decoding->reason(), EndReason::kCancelled);
  EXPECT_EQ(mid_prompt->reason(), EndReason::kCancelled);
  EXPECT_EQ(mid_prompt->ending->generated_tokens, 0);
  EXPECT_THAT(waiting->tokens, SizeIs(1)) << "the freed slot is used in the same step";
  expect_all_free(harness, 2);
}

TEST(EngineEnding, CancelWorksWhileWaiting) {
  NullHarness harness({.slots = 1});
  AnswerPtr running = harness->submit(request(5, 100));
  harness->open("s");
  AnswerPtr waiting = harness->submit(request(5, 5, 0, "s"));
  harness->step(2);
  waiting->stream()->cancel();
  harness->step();
  waiting->take();
  EXPECT_EQ(waiting->reason(), EndReason::kCancelled);
  EXPECT_EQ(waiting->ending->generated_tokens, 0);
  EXPECT_FALSE(harness->get("s").busy);
  running->take();
  EXPECT_FALSE(running->ended());
}

TEST(EngineEnding, CancelOfAPromptEndsAllItsChoices) {
  NullHarness harness({.slots = 3});
  std::vector<AnswerPtr> choices = harness->submit(request(100, 5), 3);
  harness->step();
  for (AnswerPtr& choice : choices) choice->stream()->cancel();
  harness->step();
  for (AnswerPtr& choice : choices) {
    choice->take();
    EXPECT_EQ(choice->reason(), EndReason::kCancelled);
  }
  expect_all_free(harness, 3);
}

TEST(EngineEnding, OneChoiceCanBeCancelledAlone) {
  NullHarness harness({.slots = 3});
  std::vector<AnswerPtr> choices = harness->submit(request(5, 6), 3);
  harness->step(2);
  choices[1]->stream()->cancel();
  harness->run_until_idle();
  for (AnswerPtr& choice : choices) choice->take();
  EXPECT_EQ(choices[0]->reason(), EndReason::kLength);
  EXPECT_EQ(choices[1]->reason(), EndReason::kCancelled);
  EXPECT_EQ(choices[2]->reason(), EndReason::kLength);
}

// Ends in the first step that begins after the deadline, and not before it.
void expect_deadline_holds(NullHarness& harness, Answer& answer, Clock::time_point deadline) {
  for (;;) {
    const bool passed = Clock::now() >= deadline;
    harness->step();
    answer.take();
    if (!answer.ended()) {
      ASSERT_FALSE(passed);
      continue;
    }
    EXPECT_EQ(answer.reason(), EndReason::kDeadline);
    EXPECT_GE(Clock::now(), deadline);
    return;
  }
}

TEST(EngineEnding, DeadlineWhileRunning) {
  NullHarness harness;
  AnswerPtr answer;
  // A machine that is busy may take longer to its first token: then with more time.
  for (auto time = 20ms; time < 20s; time *= 2) {
    Request endless = request(5, 1 << 30);
    endless.deadline = Clock::now() + time;
    answer = harness->submit(endless);
    expect_deadline_holds(harness, *answer, *endless.deadline);
    if (!answer->tokens.empty()) break;
  }
  EXPECT_THAT(answer->tokens, Not(SizeIs(0)));
  EXPECT_EQ(answer->ending->generated_tokens, static_cast<int64_t>(answer->tokens.size()));
}

TEST(EngineEnding, DeadlineInTheMiddleOfAPrompt) {
  NullHarness harness({.slots = 1});
  harness->open("s");
  Request endless = request(2'000'000, 1, 0, "s");
  endless.deadline = Clock::now() + 20ms;
  AnswerPtr answer = harness->submit(endless);
  expect_deadline_holds(harness, *answer, *endless.deadline);
  EXPECT_THAT(answer->tokens, SizeIs(0));
  EXPECT_EQ(harness->get("s").position, answer->ending->session_position);
  EXPECT_EQ(answer->ending->session_position % NullHarness::kChunk, 0);
  EXPECT_LT(answer->ending->session_position, 2'000'000);
}

TEST(EngineEnding, DeadlineInTheQueue) {
  NullHarness harness({.slots = 1});
  AnswerPtr running = harness->submit(request(5, 1 << 30));
  Request waiting = request(5, 5);
  waiting.deadline = Clock::now() + 20ms;
  AnswerPtr answer = harness->submit(waiting);
  expect_deadline_holds(harness, *answer, *waiting.deadline);
  EXPECT_GE(answer->ending->queue_seconds, 0.02);
  running->take();
  EXPECT_FALSE(running->ended());
}

TEST(EngineEnding, NaNEndsTheOneRequestItConcerns) {
  NullHarness harness({.slots = 6}, kPoison);
  Request bad = request(20, 5);
  bad.prompt.ids[12] = kPoison;
  Request bad_score = bad;
  bad_score.sampling.prompt_logprobs = 0;
  Request turns_bad = request(20, 5);
  turns_bad.sampling.allowed_ids = {kPoison};
  const Request good = request(20, 5, 3);
  AnswerPtr ok = harness->submit(good), nan = harness->submit(bad),
            score = harness->submit(bad_score), late = harness->submit(turns_bad);
  std::vector<AnswerPtr> both = harness->submit(bad, 2);
  harness->run_until_idle();
  for (Answer* answer : {nan.get(), score.get(), late.get(), both[0].get(), both[1].get()}) {
    answer->take();
    EXPECT_EQ(answer->reason(), EndReason::kInternal);
    EXPECT_THAT(answer->ending->message, HasSubstr("not finite"));
  }
  EXPECT_THAT(late->ids(), ::testing::ElementsAre(kPoison)) << "it was sampled from finite logits";
  ok->take();
  EXPECT_EQ(ok->bits(), harness.alone(good)->bits());
  expect_all_free(harness, 6);
  EXPECT_EQ(harness->ask(good)->bits(), ok->bits()) << "the slots are as good as new";
}

// A session can go back to before it went wrong.
TEST(EngineEnding, ASessionRecoversFromNaNByRewinding) {
  NullHarness harness({}, kPoison);
  harness->open("s");
  harness->ask(request(5, 2, 1, "s"));
  harness->command(SessionCommand::Kind::kMark, "s", "good");
  Request bad = request(9, 5, 0, "s");
  bad.prompt.ids[2] = kPoison;
  EXPECT_EQ(harness->ask(bad)->reason(), EndReason::kInternal);
  EXPECT_EQ(harness->ask(request(5, 2, 2, "s"))->reason(), EndReason::kInternal);
  harness->command(SessionCommand::Kind::kRewind, "s", "good");
  EXPECT_EQ(harness->ask(request(5, 2, 2, "s"))->reason(), EndReason::kLength);
}

// Where a state could count no further.
TEST(EngineEnding, ATextHasAsManyTokensAsAStateCounts) {
  NullHarness harness;
  const StateLayout layout = harness.model().state_layout();
  const int64_t most = layout.most_tokens();
  const auto state = std::make_shared<ImportedState>();
  state->at.position = most - 8;
  state->at.image = image_of_bytes(layout, StateBytes(layout.bytes()));
  SessionCommand import{.kind = SessionCommand::Kind::kImport, .name = "s", .state = state};
  EXPECT_EQ(harness->command(import).reason, EndReason::kDone);
  const AnswerPtr refused = harness->ask(request(5, 4, 1, "s"));
  EXPECT_EQ(refused->reason(), EndReason::kInvalid);
  EXPECT_THAT(refused->ending->message, HasSubstr("at most 8 tokens, got 9"));
  EXPECT_EQ(harness->ask(request(5, 3, 1, "s"))->reason(), EndReason::kLength);

  Answer endless;  // a text that comes while it is absorbed
  Sequence sequence{.position = 99, .most_tokens = 100};
  sequence.request.streams = {endless.stream()};
  sequence.apply_signals(Clock::now());
  EXPECT_FALSE(sequence.ended);
  sequence.position = 100;
  sequence.apply_signals(Clock::now());
  sequence.stream().accept({});
  endless.take();
  EXPECT_EQ(endless.reason(), EndReason::kInvalid);
}

TEST(EngineEnding, StopAfterEndsAsStopString) {
  NullHarness harness;
  AnswerPtr answer = harness->submit(request(5, 1000));
  harness->step(4);
  answer->stream()->stop_after(3);
  harness->step();
  answer->take();
  EXPECT_EQ(answer->reason(), EndReason::kStopString);
  EXPECT_GE(answer->ending->generated_tokens, 3);
}

TEST(EngineEnding, CloseLetsEverythingEnd) {
  NullHarness harness({.slots = 1});
  AnswerPtr running = harness->submit(request(5, 30)), waiting = harness->submit(request(5, 30));
  harness->step(3);
  AnswerPtr untaken = harness->submit(request(5, 30));
  harness->queue().close();
  EXPECT_EQ(harness->submit(request(5, 30))->admission, AdmissionQueue::Admission::kClosed);
  harness->engine().run();
  for (Answer* answer : {running.get(), waiting.get(), untaken.get()}) {
    answer->take();
    EXPECT_EQ(answer->reason(), EndReason::kLength);
  }
}

TEST(EngineEnding, AbandonEndsEverythingAsDraining) {
  NullHarness harness({.slots = 1});
  harness->open("s");
  AnswerPtr running = harness->submit(request(5, 30, 0, "s")),
            waiting = harness->submit(request(5, 30));
  harness->step(3);
  AnswerPtr untaken = harness->submit(request(5, 30));
  auto command = harness->post({.kind = SessionCommand::Kind::kGet, .name = "s"});
  harness->engine().abandon();
  harness->engine().run();
  for (Answer* answer : {running.get(), waiting.get(), untaken.get()}) {
    answer->take();
    EXPECT_EQ(answer->reason(), EndReason::kDraining);
  }
  EXPECT_EQ(running->ending->generated_tokens, static_cast<int64_t>(running->tokens.size()));
  ASSERT_EQ(command.wait_for(0s), std::future_status::ready);
  EXPECT_EQ(command.get().reason, EndReason::kDone);
}

}  // namespace recurve::testing::ending_test
