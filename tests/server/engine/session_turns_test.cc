// What a session has absorbed after each turn: BOS, pending token, turns that broke off, stop
// strings, time to live.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/engine/engine_harness.h"

namespace recurve::testing::session_turns_test {

using ::testing::ElementsAre;
using ::testing::SizeIs;
using Kind = SessionCommand::Kind;
using namespace std::chrono_literals;

constexpr int32_t kBos = 3;

Request request(size_t length, int max_tokens, uint64_t seed = 0, const std::string& session = "") {
  return NullHarness::request(length, max_tokens, seed, session);
}
Request with_bos(Request request) {
  request.continued_prompt = request.prompt;
  request.prompt.ids.insert(request.prompt.ids.begin(), kBos);
  return request;
}

TEST(SessionTurns, BosComesBeforeAFreshText) {
  NullHarness harness;
  Request spelled = request(5, 6);
  spelled.prompt.ids.insert(spelled.prompt.ids.begin(), kBos);
  AnswerPtr answer = harness->ask(with_bos(request(5, 6)));
  EXPECT_EQ(answer->accepted->prompt_tokens, 6);
  EXPECT_EQ(answer->bits(), harness.alone(spelled)->bits());
  EXPECT_NE(answer->bits(), harness.alone(request(5, 6))->bits()) << "or the test says nothing";
  EXPECT_EQ(harness->ask(with_bos(request(0, 2)))->accepted->prompt_tokens, 1) << "BOS alone";
}

TEST(SessionTurns, BosComesOnceInASession) {
  NullHarness harness;
  harness->open("s");
  harness->command(Kind::kMark, "s", "start");
  const auto absorbed = [&](size_t length) {
    return harness->ask(with_bos(request(length, 2, 0, "s")))->accepted->prompt_tokens;
  };
  EXPECT_EQ(absorbed(5), 1 + 5);
  EXPECT_EQ(absorbed(5), 1 + 5) << "the pending token, no BOS";
  harness->command(Kind::kFork, "s", "f");
  EXPECT_EQ(harness->ask(with_bos(request(4, 2, 0, "f")))->accepted->prompt_tokens, 1 + 4);
  harness->command(Kind::kRewind, "s", "start");
  EXPECT_EQ(absorbed(7), 1 + 7) << "fresh again";
  harness->ask(request(0, 0, 0, "s"));  // absorbs the pending token
  EXPECT_EQ(absorbed(4), 4) << "not fresh, nothing pending";
}

// A text may read differently at the start of a context and behind other text.
TEST(SessionTurns, AContinuedPromptIsReadWhereSomethingWasAbsorbed) {
  NullHarness harness;
  harness->open("s");
  const auto either = [](size_t length, size_t continued_length) {
    Request both = request(length, 2, 0, "s");
    both.continued_prompt = some_prompt(continued_length, 1, NullHarness::kVocab - 1);
    return both;
  };
  EXPECT_EQ(harness->ask(either(5, 9))->accepted->prompt_tokens, 5);
  EXPECT_EQ(harness->ask(either(5, 9))->accepted->prompt_tokens, 1 + 9);
  Request outside = either(5, 9);
  outside.session.clear();
  EXPECT_EQ(harness->ask(std::move(outside))->accepted->prompt_tokens, 5);
}

// A state that has control tokens alone has no text yet: the prompt begins it, without a second
// BOS.
TEST(SessionTurns, AfterControlTokensAlonePromptsBeginTheText) {
  constexpr int32_t kControl = 4;
  NullHarness harness;
  harness->open("s");
  const auto ask = [&](std::vector<int32_t> ids) {
    Request asked = with_bos(request(0, 2, 0, "s"));
    asked.prompt.ids.insert(asked.prompt.ids.end(), ids.begin(), ids.end());
    asked.begins_with_bos = true;
    asked.continued_prompt = std::vector<int32_t>{9, 9, 9, 9};
    asked.control_ids = std::make_shared<std::vector<uint64_t>>(
        std::vector{uint64_t{1} << kBos | uint64_t{1} << kControl});
    return harness->ask(std::move(asked));
  };
  harness->open("plain");
  for (const char* name : {"s", "plain"}) {
    Request controls = request(0, 0, 0, name);
    controls.prompt = {kBos, kControl};
    harness->ask(std::move(controls));
  }
  harness->command(Kind::kMark, "s", "controls");
  const auto first = ask({5, 6, 7});
  EXPECT_EQ(first->accepted->prompt_tokens, 3);
  EXPECT_FALSE(first->accepted->continues_text);
  Request spelled = request(0, 2, 0, "plain");
  spelled.prompt = {5, 6, 7};
  EXPECT_EQ(first->bits(), harness->ask(spelled)->bits());
  const auto second = ask({5, 6, 7});
  EXPECT_EQ(second->accepted->prompt_tokens, 1 + 4) << "the pending token, and the continuation";
  EXPECT_TRUE(second->accepted->continues_text);
  harness->command(Kind::kRewind, "s", "controls");
  EXPECT_EQ(ask({5, 6, 7})->accepted->prompt_tokens, 3) << "by what the state has, not by its age";
}

TEST(SessionTurns, AFreshSessionIsStillFreshAfterARequestThatDidNotBegin) {
  NullHarness harness({.slots = 1});
  harness->open("s");
  AnswerPtr running = harness->submit(request(3, 20));
  AnswerPtr waiting = harness->submit(with_bos(request(3, 2, 0, "s")));
  harness->step();
  waiting->stream()->cancel();
  harness->run_until_idle();
  EXPECT_EQ(harness->ask(with_bos(request(3, 2, 0, "s")))->accepted->prompt_tokens, 1 + 3);
}

// Messages of a chat: other tokens where the session goes on, and the end of its last turn anew.
Request chat(const std::string& session, std::vector<int32_t> start, std::vector<int32_t> going_on,
             std::vector<int32_t> replaces) {
  Request made = request(0, 3, 7, session);
  made.prompt = std::move(start);
  made = with_bos(std::move(made));
  made.continued_prompt = std::move(going_on);
  made.continued_prompt->replaces_pending = std::move(replaces);
  return made;
}

TEST(SessionTurns, MessagesReadDifferentlyWhereTheSessionGoesOn) {
  NullHarness harness;
  for (const char* name : {"s", "plain"}) harness->open(name);
  AnswerPtr first = harness->ask(chat("s", {5, 6, 7}, {8, 9}, {}));
  Request spelled = request(0, 3, 7, "plain");
  spelled.prompt = {kBos, 5, 6, 7};
  EXPECT_EQ(first->bits(), harness->ask(spelled)->bits());

  spelled = request(0, 3, 7, "plain");
  spelled.prompt = {8, 9};
  AnswerPtr kept = harness->ask(chat("s", {5, 6, 7}, {8, 9}, {}));
  EXPECT_EQ(kept->accepted->prompt_tokens, 1 + 2) << "the pending token too";
  EXPECT_EQ(kept->bits(), harness->ask(spelled)->bits());
}

TEST(SessionTurns, MessagesReplaceThePendingEndOfATurn) {
  NullHarness harness;
  harness->open("s");
  harness->ask(chat("s", {5, 6, 7}, {8, 9}, {}));
  const int32_t pending = *harness->get("s").pending_token;
  harness->command(Kind::kFork, "s", "f");

  AnswerPtr replaced = harness->ask(chat("s", {}, {pending, 9}, {1, pending}));
  EXPECT_EQ(replaced->accepted->prompt_tokens, 2);
  Request spelled = request(0, 3, 7, "f");
  spelled.prompt = {9};
  EXPECT_EQ(replaced->bits(), harness->ask(spelled)->bits()) << "the same tokens either way";
  EXPECT_EQ(harness->get("s").position, harness->get("f").position);
}

TEST(SessionTurns, MessagesThatCannotBeAbsorbedAreRefusedWhereTheyStand) {
  NullHarness harness;
  harness->open("s");
  Request bad_start = chat("s", {}, {8}, {});
  bad_start.prompt.refusal = "not at the start";
  AnswerPtr refused = harness->ask(bad_start);
  EXPECT_EQ(refused->ending->reason, EndReason::kInvalid);
  EXPECT_EQ(refused->ending->message, "not at the start");
  EXPECT_EQ(harness->get("s").position, 0);
  Request bad_later = chat("s", {5}, {}, {});
  bad_later.continued_prompt->refusal = "not later";
  EXPECT_EQ(harness->ask(bad_later)->ending->reason, EndReason::kLength);
  EXPECT_EQ(harness->ask(bad_later)->ending->message, "not later");
  EXPECT_EQ(harness->ask(bad_start)->ending->reason, EndReason::kLength);
}

// A running request gets its first chunk only when there is room. One that is cancelled before has
// changed nothing: the pending token is still pending.
TEST(SessionTurns, ARequestCancelledBeforeItsFirstChunkChangesNothing) {
  NullHarness harness({.slots = 2});  // 10 rows a step: one chunk, and two rows that hold no chunk
  harness->open("s");
  harness->ask(request(5, 4, 1, "s"));
  const SessionInfo before = harness->get("s");
  harness->command(Kind::kFork, "s", "f");
  AnswerPtr other = harness->submit(request(1000, 1));
  harness->step(2);  // the next chunk is its own too, and not that of a far shorter one
  AnswerPtr cancelled = harness->submit(request(20, 4, 2, "s"));
  harness->step();
  ASSERT_THAT(harness.steps().back(), ElementsAre(8)) << "or the test says nothing";
  cancelled->stream()->cancel();
  harness->step();
  cancelled->take();
  EXPECT_EQ(cancelled->reason(), EndReason::kCancelled);
  const SessionInfo after = harness->get("s");
  EXPECT_EQ(after.position, before.position);
  EXPECT_EQ(after.pending_token, before.pending_token);
  Request next = request(9, 5, 3, "s");
  next.sampling.repetition_penalty = 1.5f;
  AnswerPtr answer = harness->ask(next);
  next.session = "f";
  EXPECT_EQ(answer->bits(), harness->ask(next)->bits());
}

// What a broken-off prompt leaves is what absorbing just its first part leaves, for the penalties
// too.
TEST(SessionTurns, APromptCancelledHalfwayHasAbsorbedItsChunks) {
  NullHarness harness({.slots = 1});
  harness->open("s"), harness->open("part");
  Request whole = request(10 * NullHarness::kChunk, 4, 1, "s");
  AnswerPtr cancelled = harness->submit(whole);
  harness->step(3);
  cancelled->stream()->cancel();
  harness->run_until_idle();
  cancelled->take();
  const int64_t absorbed = cancelled->ending->session_position;
  EXPECT_EQ(absorbed, 3 * NullHarness::kChunk);
  EXPECT_EQ(harness->get("s").position, absorbed);
  EXPECT_EQ(harness->get("s").pending_token, std::nullopt);

  Request part = request(static_cast<size_t>(absorbed), 0, 1, "part");
  ASSERT_TRUE(std::equal(part.prompt.ids.begin(), part.prompt.ids.end(), whole.prompt.ids.begin()));
  harness->ask(part);
  Request next = request(9, 8, 3, "s");
  next.sampling.repetition_penalty = 1.5f;
  AnswerPtr answer = harness->ask(next);
  next.session = "part";
  EXPECT_EQ(answer->bits(), harness->ask(next)->bits());
}

TEST(SessionTurns, ACancelledAnswerIsAsLongAsWhatWasSent) {
  NullHarness harness;
  harness->open("s"), harness->open("short");
  AnswerPtr cancelled = harness->submit(request(5, 100, 1, "s"));
  harness->step(7);
  cancelled->stream()->cancel();
  harness->run_until_idle();
  cancelled->take();
  ASSERT_THAT(cancelled->tokens, SizeIs(7));
  EXPECT_EQ(harness->get("s").position, 5 + 6);
  EXPECT_EQ(harness->get("s").pending_token, cancelled->tokens.back().id);
  harness->ask(request(5, 7, 1, "short"));
  EXPECT_EQ(harness->ask(request(3, 5, 2, "s"))->bits(),
            harness->ask(request(3, 5, 2, "short"))->bits());
}

// Penalties reach back over turns: a talk in turns against the same text as one prompt.
TEST(SessionTurns, PenaltiesKnowTheWholeSession) {
  NullHarness harness;
  harness->open("s");
  Request first = request(8, 8, 1, "s");
  AnswerPtr said = harness->ask(first);
  Request next = request(0, 8, 2, "s");
  next.sampling.repetition_penalty = 10.0f;
  const std::vector<int32_t> ids = harness->ask(next)->ids();
  for (const int32_t id : ids) {
    EXPECT_EQ(std::count(ids.begin(), ids.end(), id), 1);
    EXPECT_THAT(said->ids(), ::testing::Not(::testing::Contains(id)));
    EXPECT_THAT(first.prompt.ids, ::testing::Not(::testing::Contains(id)));
  }
}

// With wait_for_acknowledgement no token is absorbed before its text has been looked at.
TEST(SessionTurns, AnUnacknowledgedTokenIsNotAbsorbed) {
  NullHarness harness;
  harness->open("s");
  Request stopping = request(5, 100, 1, "s");
  stopping.wait_for_acknowledgement = true;
  AnswerPtr answer = harness->submit(stopping);
  harness->run_until_idle(100);
  answer->take();
  ASSERT_THAT(answer->tokens, SizeIs(1));
  answer->stream()->acknowledge(1);
  harness->run_until_idle(100);
  answer->take();
  ASSERT_THAT(answer->tokens, SizeIs(2));
  answer->stream()->stop_after(2);
  answer->stream()->acknowledge(2);
  harness->run_until_idle(100);
  answer->take();
  EXPECT_EQ(answer->reason(), EndReason::kStopString);
  EXPECT_EQ(answer->ending->generated_tokens, 2);
  EXPECT_EQ(answer->ending->session_position, 5 + 1);
  EXPECT_EQ(harness->get("s").pending_token, answer->tokens[1].id);
}

TEST(SessionTurns, WaitingForAcknowledgementChangesNoToken) {
  NullHarness harness;
  Request slow = request(5, 6, 1);
  const auto want = harness.alone(slow)->bits();
  slow.wait_for_acknowledgement = true;
  AnswerPtr answer = harness->submit(slow);
  for (int64_t seen = 0; !answer->ended(); answer->stream()->acknowledge(++seen)) {
    harness->run_until_idle(100);
    answer->take();
  }
  EXPECT_EQ(answer->bits(), want);
}

// The engine sleeps until a session's time is up.
TEST(SessionTurns, IdleSessionsAreClosedWithoutACall) {
  NullHarness harness({.ttl_seconds = 0.02});
  harness->start();
  harness->open("s");
  // It may have gone before, on a machine that is busy: nothing is said of this answer.
  AnswerPtr answer = harness->submit(request(5, 2, 1, "s"));
  answer->wait_for_end();
  const Clock::time_point limit = Clock::now() + 60s;
  while (harness->stats().sessions > 0 && Clock::now() < limit) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(harness->stats().sessions, 0);
  AnswerPtr late = harness->submit(request(5, 2, 1, "s"));
  late->wait_for_end();
  EXPECT_EQ(late->reason(), EndReason::kNoSession);
  harness->join();
  EXPECT_EQ(harness->stats().slots_free, harness->stats().slots);
}

}  // namespace recurve::testing::session_turns_test
