// Who gets in, in which order, and who is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/support/engine/engine_harness.h"

namespace recurve::testing::admission_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Admission = AdmissionQueue::Admission;
using Kind = SessionCommand::Kind;

Request request(size_t length, int max_tokens, uint64_t seed = 0, const std::string& session = "") {
  return NullHarness::request(length, max_tokens, seed, session);
}

// Steps until all have ended; the answers in the order in which they began.
std::vector<int> order_of_start(EngineHarness& harness, const std::vector<Answer*>& answers) {
  std::vector<int> order;
  for (int step = 0; step < 10000; ++step) {
    const bool work = harness.step();
    for (size_t i = 0; i < answers.size(); ++i) {
      const bool had_begun = !answers[i]->tokens.empty();
      answers[i]->take();
      if (!had_begun && !answers[i]->tokens.empty()) order.push_back(static_cast<int>(i));
    }
    if (!work) return order;
  }
  ADD_FAILURE() << "does not end";
  return order;
}

TEST(EngineAdmission, TheQueueIsBounded) {
  NullHarness harness({.slots = 1, .max_queue = 2});
  AnswerPtr running = harness->submit(request(3, 50));
  harness->step();
  EXPECT_EQ(harness->queue().waiting(), 0) << "who runs does not wait";
  AnswerPtr a = harness->submit(request(3, 1)), b = harness->submit(request(3, 1));
  harness->step();
  EXPECT_EQ(harness->queue().waiting(), 2);
  EXPECT_EQ(harness->submit(request(3, 1))->admission, Admission::kFull);
  harness->run_until_idle();
  EXPECT_EQ(harness->queue().waiting(), 0);
  EXPECT_EQ(harness->submit(request(3, 1))->admission, Admission::kAccepted);
}

TEST(EngineAdmission, EveryWayOutOfTheQueueIsCounted) {
  NullHarness harness({.slots = 1, .max_queue = 10});
  AnswerPtr running = harness->submit(request(3, 5));
  AnswerPtr cancelled = harness->submit(request(3, 5));
  cancelled->stream()->cancel();
  Request late = request(3, 5);
  late.deadline = Clock::now();
  AnswerPtr expired = harness->submit(std::move(late));
  AnswerPtr refused = harness->submit(request(0, 5));
  AnswerPtr admitted = harness->submit(request(3, 5));
  EXPECT_EQ(harness->queue().waiting(), 5);
  harness->step();
  EXPECT_EQ(harness->queue().waiting(), 1);
  cancelled->take(), expired->take(), refused->take();
  EXPECT_EQ(cancelled->reason(), EndReason::kCancelled);
  EXPECT_EQ(expired->reason(), EndReason::kDeadline);
  EXPECT_EQ(refused->reason(), EndReason::kInvalid);
  harness->run_until_idle();
  EXPECT_EQ(harness->queue().waiting(), 0);
}

TEST(EngineAdmission, FirstComeFirstServed) {
  NullHarness harness({.slots = 2});
  std::vector<AnswerPtr> answers;
  std::vector<Answer*> pointers;
  for (uint64_t i = 0; i < 7; ++i) {
    answers.push_back(harness->submit(request(3 + i % 3 * 10, 2 + static_cast<int>(i % 2), i)));
    pointers.push_back(answers.back().get());
  }
  harness->step();
  EXPECT_EQ(harness->stats().running, 2);
  std::vector<int> order = order_of_start(*harness, pointers);
  // Two at a time: a short prompt may overtake the long one that came in just before it.
  for (int i = 0; i < 7; ++i) EXPECT_LE(std::abs(order.at(static_cast<size_t>(i)) - i), 1);
}

// Drawn, so that the choices differ.
Request drawn(size_t length, int max_tokens, uint64_t seed) {
  Request drawn = request(length, max_tokens, seed);
  drawn.sampling.temperature = 1;
  drawn.sampling.seed = seed;
  return drawn;
}

TEST(EngineAdmission, OneSlotIsEnoughToBeginAndTheOtherChoicesFollow) {
  NullHarness harness({.slots = 3});
  AnswerPtr first = harness->submit(request(3, 60)), second = harness->submit(request(3, 60));
  harness->step();
  const Request target = drawn(20, 4, 7);
  std::vector<AnswerPtr> three = harness->submit(target, 3);
  harness->step(5);
  three[0]->take(), three[1]->take();
  EXPECT_FALSE(three[0]->tokens.empty());
  EXPECT_TRUE(three[1]->tokens.empty()) << "there is no slot for it yet";
  EXPECT_EQ(harness->stats().running, 3);
  EXPECT_EQ(harness->queue().waiting(), 1) << "the rest of the request";
  harness->run_until_idle();
  EXPECT_EQ(harness->queue().waiting(), 0);
  for (size_t c = 0; c < three.size(); ++c) {
    three[c]->take();
    EXPECT_EQ(three[c]->reason(), EndReason::kLength);
    Request alone = target;
    alone.sampling.seed += c;
    EXPECT_EQ(three[c]->bits(), harness.alone(alone)->bits()) << c;
  }
  EXPECT_NE(three[0]->ids(), three[1]->ids()) << "or the test says nothing";
  EXPECT_EQ(harness->stats().slots_free, 3);
}

TEST(EngineAdmission, ChoicesThatWaitHoldNoSlotAndNoPlaceBeforeWhoCameEarlier) {
  NullHarness harness({.slots = 2});
  AnswerPtr running = harness->submit(request(3, 60));
  harness->step();
  AnswerPtr before = harness->submit(request(3, 6, 1));
  std::vector<AnswerPtr> both = harness->submit(request(3, 6, 2), 2);
  AnswerPtr later = harness->submit(request(3, 6, 3));
  EXPECT_THAT(order_of_start(*harness, {running.get(), before.get(), both[0].get(), both[1].get(),
                                        later.get()}),
              ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(running->tokens.size(), 60u) << "it has run all the time";
}

// Who runs on, and keeps two of three slots from being of use, is no reason to move a session.
TEST(EngineAdmission, NoSlotStandsIdleAndNoSessionMovesInVain) {
  NullHarness harness({.slots = 3});
  for (const std::string name : {"a", "b"}) {
    harness->open(name);
    harness->ask(request(3, 2, 0, name));
  }
  AnswerPtr running = harness->submit(request(3, 60));
  harness->step();
  std::vector<AnswerPtr> three = harness->submit(request(40, 30, 1), 3);
  harness->step(2);
  EXPECT_EQ(harness->get("a").tier, Tier::kHost) << "idle longest: its slot is in use";
  EXPECT_EQ(harness->get("b").tier, Tier::kSlot) << "no request needs that one yet";
  harness->step(8);
  three[0]->take(), three[1]->take();
  EXPECT_FALSE(three[0]->tokens.empty());
  EXPECT_FALSE(three[1]->tokens.empty());
  EXPECT_EQ(harness->get("b").tier, Tier::kHost) << "where the prompt ended it was needed";
  harness->run_until_idle();
}

// The rest of a request that is being answered is not given up, however long it waits.
TEST(EngineAdmission, ChoicesThatWaitMayBeCancelledButAreNotGivenUp) {
  const HeldClock held;
  NullHarness harness({.slots = 2, .first_token = {.seconds = 1}});
  AnswerPtr running = harness->submit(request(3, 60));
  harness->step();
  std::vector<AnswerPtr> both = harness->submit(request(3, 20, 2), 2);
  harness->step(5);
  Clock::pass(std::chrono::seconds(100));
  harness->step();
  both[1]->take();
  EXPECT_FALSE(both[1]->ended());
  for (AnswerPtr& choice : both) choice->stream()->cancel();
  harness->step();
  for (AnswerPtr& choice : both) {
    choice->take();
    EXPECT_EQ(choice->reason(), EndReason::kCancelled);
  }
  EXPECT_EQ(harness->queue().waiting(), 0);
  harness->run_until_idle();
}

TEST(EngineAdmission, MoreChoicesThanSlotsAreRefused) {
  NullHarness harness({.slots = 3});
  for (AnswerPtr& choice : harness->submit(request(3, 4), 4)) {
    harness->run_until_idle();
    choice->take();
    EXPECT_EQ(choice->reason(), EndReason::kInvalid);
    EXPECT_THAT(choice->ending->message, HasSubstr("n is 4, but there are 3 slots"));
  }
}

TEST(EngineAdmission, IdleSessionsMakeRoom) {
  NullHarness harness({.slots = 2});
  for (const std::string name : {"a", "b"}) {
    harness->open(name);
    harness->ask(request(3, 2, 0, name));
  }
  ASSERT_EQ(harness->stats().slots_free, 0);
  for (AnswerPtr& choice : harness->submit(request(3, 4), 2)) {
    harness->run_until_idle();
    choice->take();
    EXPECT_EQ(choice->reason(), EndReason::kLength);
  }
  EXPECT_EQ(harness->get("a").tier, Tier::kHost);
  EXPECT_EQ(harness->get("b").tier, Tier::kHost);
}

// The head of the queue wants both slots; one of them is held by a session whose own request waits
// behind the head.
TEST(EngineAdmission, AQueuedSessionsSlotIsNotInTheWay) {
  NullHarness harness({.slots = 2});
  harness->open("s");
  harness->ask(request(3, 2, 0, "s"));
  AnswerPtr running = harness->submit(request(3, 10));
  harness->step();
  std::vector<AnswerPtr> head = harness->submit(request(3, 4, 1), 2);
  AnswerPtr behind = harness->submit(request(3, 4, 2, "s"));
  EXPECT_THAT(order_of_start(*harness, {running.get(), head[0].get(), behind.get()}),
              ElementsAre(0, 1, 2));
}

// A session whose requests follow each other without a pause does not keep its slot for ever.
TEST(EngineAdmission, ABusySessionDoesNotStarveTheQueue) {
  NullHarness harness({.slots = 1});
  harness->open("s");
  AnswerPtr talk = harness->submit(request(3, 3, 0, "s"));
  harness->step();
  AnswerPtr waiting = harness->submit(request(3, 3));
  for (int step = 0; step < 200 && !waiting->ended(); ++step) {
    harness->step();
    waiting->take(), talk->take();
    if (talk->ended()) talk = harness->submit(request(3, 3, 0, "s"));
  }
  EXPECT_TRUE(waiting->ended());
}

TEST(EngineAdmission, AnUnknownSessionIsRefused) {
  NullHarness harness;
  AnswerPtr answer = harness->ask(request(3, 2, 0, "unknown"));
  EXPECT_EQ(answer->reason(), EndReason::kNoSession);
  EXPECT_THAT(answer->ending->message, HasSubstr("\"unknown\""));
  EXPECT_FALSE(answer->accepted);
}

TEST(EngineAdmission, ABusySessionRefusesASecondRequest) {
  for (const bool queued : {false, true}) {
    NullHarness harness({.slots = 1});
    harness->open("s");
    AnswerPtr other;
    if (queued) {
      other = harness->submit(request(3, 30));
      harness->step();
    }
    AnswerPtr first = harness->submit(request(3, 5, 0, "s"));
    harness->step();
    EXPECT_TRUE(harness->get("s").busy);
    AnswerPtr second = harness->submit(request(3, 5, 0, "s"));
    EXPECT_EQ(harness->command(Kind::kClose, "s").reason, EndReason::kSessionBusy);
    harness->run_until_idle();
    first->take(), second->take();
    EXPECT_EQ(second->reason(), EndReason::kSessionBusy);
    EXPECT_THAT(second->ending->message, HasSubstr("\"s\""));
    EXPECT_EQ(first->reason(), EndReason::kLength);
    EXPECT_EQ(harness->get("s").position, 3 + 4);
    EXPECT_FALSE(harness->get("s").busy);
  }
}

TEST(EngineAdmission, ThereMustBeSomethingToAbsorb) {
  NullHarness harness;
  EXPECT_EQ(harness->ask(request(0, 2))->reason(), EndReason::kInvalid);
  harness->open("s");
  AnswerPtr fresh = harness->ask(request(0, 2, 0, "s"));
  EXPECT_EQ(fresh->reason(), EndReason::kInvalid);
  EXPECT_FALSE(harness->get("s").busy);

  EXPECT_EQ(harness->ask(request(3, 2, 0, "s"))->reason(), EndReason::kLength);
  AnswerPtr pending = harness->ask(request(0, 2, 0, "s"));
  EXPECT_EQ(pending->reason(), EndReason::kLength);
  EXPECT_EQ(pending->accepted->prompt_tokens, 1) << "the token sampled last";
  EXPECT_EQ(pending->accepted->session_position, 3 + 1);
  EXPECT_EQ(pending->ending->session_position, 3 + 1 + 1 + 1);

  EXPECT_EQ(harness->ask(request(0, 0, 0, "s"))->reason(), EndReason::kLength);
  EXPECT_EQ(harness->get("s").pending_token, std::nullopt);
  AnswerPtr absorbed = harness->ask(request(0, 2, 0, "s"));
  EXPECT_EQ(absorbed->reason(), EndReason::kInvalid);
  EXPECT_THAT(absorbed->ending->message, HasSubstr("the prompt is empty"));
}

TEST(EngineAdmission, SaysWhatWillBeAbsorbed) {
  NullHarness harness;
  AnswerPtr answer = harness->ask(request(7, 2));
  ASSERT_TRUE(answer->accepted);
  EXPECT_EQ(answer->accepted->prompt_tokens, 7);
  EXPECT_EQ(answer->accepted->session_position, 0);
  EXPECT_EQ(answer->ending->prompt_tokens, 7);
  EXPECT_EQ(answer->ending->generated_tokens, 2);
  EXPECT_GE(answer->ending->queue_seconds, 0);
  EXPECT_GE(answer->ending->prefill_seconds, 0);
  EXPECT_GE(answer->ending->decode_seconds, 0);
}

TEST(EngineAdmission, MemoryForSessionsRunsOutForTheLastToOpenOnly) {
  NullHarness probe;
  const int64_t each = SessionStore::bytes_each(probe.model().state_layout(), NullHarness::kVocab);
  NullHarness harness({.slots = 2, .host_bytes = 5 * each + 1});
  std::vector<std::string> names;
  for (int i = 0; i < 5; ++i) {
    names.push_back("s" + std::to_string(i));
    ASSERT_EQ(harness->open(names.back()).reason, EndReason::kDone);
  }
  EXPECT_EQ(harness->open("too much").reason, EndReason::kExhausted);
  for (int turn = 0; turn < 3; ++turn) {  // all of them go on, two at a time
    std::vector<AnswerPtr> answers;
    for (const std::string& name : names) {
      answers.push_back(harness->submit(request(3, 2, 0, name)));
    }
    harness->run_until_idle();
    for (AnswerPtr& answer : answers) {
      answer->take();
      EXPECT_EQ(answer->reason(), EndReason::kLength);
    }
  }
  EXPECT_EQ(harness->stats().sessions, 5);
  EXPECT_EQ(harness->stats().sessions_host, 3);
  EXPECT_EQ(harness->stats().slots_idle, 2);
  EXPECT_EQ(harness->stats().host_bytes, 3 * probe.state_bytes());
}

// Another thread reads the load while sequences and sessions come and go.
TEST(EngineAdmission, TheLoadIsOfOneMoment) {
  constexpr int kSlots = 4;
  NullHarness harness({.slots = kSlots});
  for (int i = 0; i < 3; ++i) harness->open("s" + std::to_string(i));
  std::atomic<bool> done = false;
  std::thread reader([&] {
    while (!done) {
      const EngineStats stats = harness->stats();
      EXPECT_EQ(stats.slots, kSlots);
      EXPECT_EQ(stats.slots_free + stats.running + stats.slots_idle, kSlots);
    }
  });
  for (uint64_t turn = 0; turn < 200; ++turn) {
    std::vector<AnswerPtr> answers;
    for (uint64_t i = 0; i < 3; ++i) {
      answers.push_back(harness->submit(request(3, 2, turn, "s" + std::to_string(i))));
      answers.push_back(harness->submit(request(3, 3, turn)));
    }
    harness->run_until_idle();
    for (AnswerPtr& answer : answers) answer->take();
  }
  done = true;
  reader.join();
}

TEST(EngineAdmission, StoredResponsesAreNotCountedAsSessions) {
  NullHarness harness({.slots = 2});
  harness->open("s");
  harness->open(reserved_name("resp_1"));
  harness->open(reserved_name("resp_2"));
  EXPECT_EQ(harness->stats().sessions, 1);
  EXPECT_EQ(harness->stats().responses, 2);
  harness->command(SessionCommand::Kind::kClose, reserved_name("resp_1"));
  EXPECT_EQ(harness->stats().responses, 1);
}

}  // namespace recurve::testing::admission_test
