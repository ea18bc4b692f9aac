// The engine on its thread, with others pushing, cancelling and acknowledging: for the thread
// sanitizer, and for what holds whatever the timing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/engine/engine_harness.h"

namespace recurve::testing::threads_test {

using Admission = AdmissionQueue::Admission;
using Kind = SessionCommand::Kind;
using namespace std::chrono_literals;

Request request(size_t length, int max_tokens, uint64_t seed = 0, const std::string& session = "") {
  return NullHarness::request(length, max_tokens, seed, session);
}

// One client of the engine, with its own session and an idle engine to compare with.
class Client {
 public:
  Client(NullHarness& engine, int number)
      : engine_(engine),
        name_("s" + std::to_string(number)),
        random_(static_cast<uint32_t>(number)) {}

  void run(int rounds) {
    quiet_->open(name_);
    EXPECT_EQ(engine_->open(name_).reason, EndReason::kDone);
    for (int round = 0; round < rounds; ++round) {
      switch (round % 4) {
        case 0:
          talk(between(1, 5));
          break;
        case 1:
          ask();
          break;
        case 2:
          leave();
          break;
        default:
          fork_and_rewind();
      }
    }
    EXPECT_EQ(engine_->command(Kind::kClose, name_).reason, EndReason::kDone);
  }

 private:
  int between(int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random_);
  }
  void dawdle() {
    if (between(0, 2) == 0) std::this_thread::sleep_for(std::chrono::microseconds(between(0, 300)));
  }
  Request a_request(int max_tokens, const std::string& session = "") {
    return request(static_cast<size_t>(between(1, 40)), max_tokens, random_(), session);
  }
  // Once there is room in the queue.
  AnswerPtr submit(const Request& request) {
    for (;;) {
      AnswerPtr answer = engine_->submit(request);
      if (answer->admission == Admission::kAccepted) return answer;
      EXPECT_EQ(answer->admission, Admission::kFull);
      std::this_thread::yield();
    }
  }

  void ask() {
    const Request plain = a_request(6);
    AnswerPtr answer = submit(plain);
    answer->wait_for_end();
    EXPECT_EQ(answer->bits(), quiet_->ask(plain)->bits());
  }

  // The client goes away at some time.
  void leave() {
    AnswerPtr answer = submit(a_request(1 << 30));  // more than it can say meanwhile
    dawdle();
    answer->stream()->cancel();
    engine_->queue().wake();
    answer->wait_for_end();
    EXPECT_EQ(answer->reason(), EndReason::kCancelled);
  }

  // A stop string is found in the token numbered `stop`, whenever the client gets to look at it.
  void talk(int stop) {
    Request turn = a_request(10, name_);
    turn.wait_for_acknowledgement = true;
    AnswerPtr answer = submit(turn);
    for (size_t seen = 0; !answer->ended();) {
      ASSERT_TRUE(answer->wait());
      dawdle();
      if (answer->tokens.size() == seen) continue;
      seen = answer->tokens.size();
      if (static_cast<int>(seen) == stop) answer->stream()->stop_after(stop);
      answer->stream()->acknowledge(static_cast<int64_t>(seen));
      engine_->queue().wake();
    }
    EXPECT_EQ(answer->reason(), EndReason::kStopString);
    turn.wait_for_acknowledgement = false;
    turn.sampling.max_tokens = stop;
    AnswerPtr want = quiet_->ask(turn);
    EXPECT_EQ(answer->bits(), want->bits());
    EXPECT_EQ(answer->ending->session_position, want->ending->session_position);
    EXPECT_EQ(engine_->get(name_).pending_token, quiet_->get(name_).pending_token);
  }

  void fork_and_rewind() {
    const std::string fork = name_ + "-fork";
    EXPECT_EQ(engine_->command(Kind::kMark, name_, "m").reason, EndReason::kDone);
    EXPECT_EQ(engine_->command(Kind::kFork, name_, fork).reason, EndReason::kDone);
    const Request turn = a_request(3, name_);
    Request same = turn;
    same.session = fork;
    AnswerPtr original = submit(turn), forked = submit(same);
    original->wait_for_end(), forked->wait_for_end();
    EXPECT_EQ(original->bits(), forked->bits());
    EXPECT_EQ(engine_->command(Kind::kClose, fork).reason, EndReason::kDone);
    EXPECT_EQ(engine_->command(Kind::kRewind, name_, "m").reason, EndReason::kDone);
    engine_->command({.kind = Kind::kList, .limit = 3});
  }

  NullHarness& engine_;
  const std::string name_;
  std::mt19937 random_;
  NullHarness quiet_;
};

TEST(EngineThreads, ManyClientsAtOnce) {
  NullHarness harness({.slots = 3, .max_queue = 3});
  harness->start();
  std::vector<std::thread> threads;
  for (int c = 1; c <= 5; ++c) {
    threads.emplace_back([&harness, c] { Client(harness, c).run(24); });
  }
  for (std::thread& thread : threads) thread.join();
  harness->join();
  EXPECT_EQ(harness->stats().sessions, 0);
  EXPECT_EQ(harness->stats().slots_free, 3);
  EXPECT_EQ(harness->queue().waiting(), 0);
}

// Pushes from a thread of its own until the queue is closed.
class Pusher {
 public:
  explicit Pusher(NullHarness& harness) : thread_([this, &harness] { run(harness); }) {}
  std::vector<AnswerPtr> join() {
    thread_.join();
    return std::move(accepted_);
  }
  std::vector<std::future<SessionResult>> commands;

 private:
  void run(NullHarness& harness) {
    for (;;) {
      AnswerPtr answer = harness->submit(request(5, 3));
      if (answer->admission == Admission::kClosed) return;
      if (answer->admission == Admission::kAccepted) accepted_.push_back(std::move(answer));
      commands.push_back(harness->post({.kind = Kind::kList}));
    }
  }
  std::vector<AnswerPtr> accepted_;
  std::thread thread_;
};

TEST(EngineThreads, WhatIsAcceptedBeforeCloseIsServed) {
  for (int round = 0; round < 60; ++round) {
    NullHarness harness({.slots = 2, .max_queue = 20});
    harness->start();
    Pusher pusher(harness);
    std::this_thread::sleep_for(std::chrono::microseconds(10 * round));
    harness->join();
    for (AnswerPtr& answer : pusher.join()) {
      answer->take();
      ASSERT_EQ(answer->reason(), EndReason::kLength);
    }
    for (auto& command : pusher.commands) {
      ASSERT_EQ(command.wait_for(0s), std::future_status::ready);
    }
  }
}

TEST(EngineThreads, WhatIsAcceptedBeforeAbandonIsAnswered) {
  for (int round = 0; round < 60; ++round) {
    NullHarness harness({.slots = 2, .max_queue = 20});
    harness->start();
    Pusher pusher(harness);
    std::this_thread::sleep_for(std::chrono::microseconds(10 * round));
    harness->engine().abandon();
    harness->join();
    for (AnswerPtr& answer : pusher.join()) {
      answer->take();
      ASSERT_TRUE(answer->ended());
      EXPECT_TRUE(answer->reason() == EndReason::kLength ||
                  answer->reason() == EndReason::kDraining);
    }
    for (auto& command : pusher.commands) {
      ASSERT_EQ(command.wait_for(0s), std::future_status::ready);
    }
  }
}

// The engine sleeps, since it waits for an acknowledgement; no other thread wakes it.
TEST(EngineThreads, ADeadlineWakesTheEngine) {
  NullHarness harness({.slots = 1});
  harness->start();
  AnswerPtr answer;
  // A machine that is busy may take longer to its first token: then with more time.
  for (auto time = 20ms; time < 20s; time *= 2) {
    Request forgotten = request(5, 10);
    forgotten.wait_for_acknowledgement = true;
    forgotten.deadline = Clock::now() + time;
    answer = harness->submit(forgotten);
    answer->wait_for_end();
    ASSERT_EQ(answer->reason(), EndReason::kDeadline);
    if (!answer->tokens.empty()) break;
  }
  EXPECT_EQ(answer->tokens.size(), 1u);
}

}  // namespace recurve::testing::threads_test
