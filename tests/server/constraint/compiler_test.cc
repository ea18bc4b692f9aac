#include "server/constraint/compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <latch>
#include <random>
#include <semaphore>
#include <thread>

#include "tests/server/constraint/byte_vocabulary.h"

namespace recurve::compiler_test {
namespace {

using Form = ConstraintText::Form;
using Outcome = ConstraintCompiler::Outcome;

ConstraintText choice(int number) {
  return {Form::kChoice, "[\"" + std::to_string(number) + "\"]"};
}

// Waits for one.
std::optional<Outcome> compile(ConstraintCompiler& compiler, const ConstraintText& text,
                               uint64_t client = 0) {
  std::binary_semaphore done(0);
  ConstraintCompiler::Waiter waiter;
  auto known = compiler.compile(text, client, [&] { done.release(); }, &waiter);
  if (known) return known;
  done.acquire();
  return waiter.outcome();
}

TEST(ConstraintCompiler, CompilesOnceAndRemembers) {
  ConstraintCompiler compiler(testing::byte_vocabulary);
  const auto first = compile(compiler, choice(1)), again = compile(compiler, choice(1));
  ASSERT_TRUE(first && again);
  EXPECT_EQ(first->constraint, again->constraint);
  EXPECT_EQ(first->constraint == nullptr, !has_constraint_library());
  EXPECT_EQ(compiler.counts().from_cache, 1);
  EXPECT_EQ(compiler.counts().compiled + compiler.counts().refused, 1);
}

TEST(ConstraintCompiler, RemembersRefusalsAndSaysWhy) {
  ConstraintCompiler compiler(testing::byte_vocabulary);
  const ConstraintText bad{Form::kJsonSchema, R"({"contains":{}})"};
  for (int i = 0; i < 3; ++i) {
    const auto outcome = compile(compiler, bad);
    ASSERT_TRUE(outcome);
    EXPECT_EQ(outcome->constraint, nullptr);
    EXPECT_FALSE(outcome->full);
    EXPECT_THAT(
        outcome->refusal,
        ::testing::HasSubstr(has_constraint_library() ? "contains at #" : "RECURVE_GRAMMARS"));
  }
  EXPECT_EQ(compiler.counts().refused, 1);
}

TEST(ConstraintCompiler, ForgetsWhatWasUsedLongestAgo) {
  constexpr size_t kBytes = size_t{1} << 16;
  ConstraintCompiler compiler(testing::byte_vocabulary, {.cache_bytes = kBytes});
  for (int i = 0; i < 200; ++i) {
    compile(compiler, choice(i));
    EXPECT_LE(compiler.counts().cached_bytes, kBytes);
  }
  EXPECT_EQ(compiler.counts().from_cache, 0);
  compile(compiler, choice(199));
  EXPECT_EQ(compiler.counts().from_cache, 1);
  compile(compiler, choice(0));
  EXPECT_EQ(compiler.counts().from_cache, 1);
}

TEST(ConstraintCompiler, WhatAClientUsesIsKeptWhateverOthersAskFor) {
  ConstraintCompiler compiler(testing::byte_vocabulary, {.cache_bytes = size_t{1} << 16});
  compile(compiler, choice(1000), /*client=*/1);
  for (int i = 0; i < 200; ++i) compile(compiler, choice(i), /*client=*/2);
  compile(compiler, choice(1000), /*client=*/1);
  EXPECT_EQ(compiler.counts().from_cache, 1);
}

// The thread is held by the vocabulary, which the first one asks for.
class HeldCompiler {
 public:
  explicit HeldCompiler(CompileLimits limits)
      : compiler_(
            [this] {
              began_.count_down();
              release_.wait();
              return testing::byte_vocabulary();
            },
            limits) {
    first_ = compiler_.compile(choice(1000), 99, [] {}, &held_);
    began_.wait();
  }
  ~HeldCompiler() {
    if (!release_.try_wait()) release_.count_down();
  }
  void release() { release_.count_down(); }
  ConstraintCompiler& operator*() { return compiler_; }

 private:
  std::latch began_{1}, release_{1};
  ConstraintCompiler compiler_;
  ConstraintCompiler::Waiter held_;
  std::optional<Outcome> first_;
};

// So many ids that what follows takes minutes to compile.
TokenTexts large_vocabulary() {
  TokenTexts texts = testing::byte_vocabulary();
  std::mt19937 random(1);
  while (texts.size() < 40'000) {
    std::string text;
    for (int i = 0; i < 8; ++i) text += static_cast<char>(' ' + random() % 95);
    texts.push_back(text);
  }
  return texts;
}
const ConstraintText kSlow{Form::kRegex, ".{0,200}"};

TEST(ConstraintCompiler, AnAbandonedCompilationIsCancelled) {
  if (!has_constraint_library()) GTEST_SKIP() << "built without structured output";
  std::latch began(1);
  ConstraintCompiler compiler([&] {
    began.count_down();
    return large_vocabulary();
  });
  ConstraintCompiler::Waiter waiter;
  compiler.compile(kSlow, 0, [] {}, &waiter);
  began.wait();
  waiter.forget();
  EXPECT_NE(compile(compiler, choice(1))->constraint, nullptr);
  EXPECT_EQ(compiler.counts().given_up, 1);
  EXPECT_EQ(compiler.counts().waiting, 0);
}

TEST(ConstraintCompiler, EndingWaitsForNoCompilation) {
  if (!has_constraint_library()) GTEST_SKIP() << "built without structured output";
  const auto began = std::chrono::steady_clock::now();
  double vocabulary = 0;  // seconds until it was there
  {
    std::latch asked(1);
    ConstraintCompiler compiler([&] {
      TokenTexts texts = large_vocabulary();
      asked.count_down();
      return texts;
    });
    ConstraintCompiler::Waiter waiter;
    compiler.compile(kSlow, 0, [] {}, &waiter);
    asked.wait();
    vocabulary = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - began;
  EXPECT_LT(all.count() - vocabulary, 10) << "on a machine that does other things";
}

TEST(ConstraintCompiler, IsFullWhereTooManyWait) {
  HeldCompiler held({.most_waiting = 4, .most_of_one = 2});
  ConstraintCompiler::Waiter waiters[6];
  EXPECT_FALSE((*held).compile(choice(1), 1, [] {}, &waiters[0]));
  EXPECT_FALSE((*held).compile(choice(2), 1, [] {}, &waiters[1]));
  const auto of_one = (*held).compile(choice(3), 1, [] {}, &waiters[2]);
  ASSERT_TRUE(of_one);
  EXPECT_TRUE(of_one->full) << "two of one client wait";
  EXPECT_FALSE((*held).compile(choice(1), 1, [] {}, &waiters[3])) << "the same takes no room";
  EXPECT_FALSE((*held).compile(choice(4), 2, [] {}, &waiters[4]));
  const auto of_all = (*held).compile(choice(5), 3, [] {}, &waiters[5]);
  ASSERT_TRUE(of_all);
  EXPECT_TRUE(of_all->full);
  held.release();
}

TEST(ConstraintCompiler, ClientsTakeTurns) {
  std::mutex mutex;
  std::vector<int> order;
  std::latch all(7);
  HeldCompiler held({});
  ConstraintCompiler::Waiter waiters[7];
  const auto add = [&](int number, uint64_t client) {
    (*held).compile(
        choice(number), client,
        [&, number] {
          std::lock_guard lock(mutex);
          order.push_back(number);
          all.count_down();
        },
        &waiters[number]);
  };
  for (const int number : {0, 1, 2, 3}) add(number, 1);
  add(4, 2);
  add(5, 2);
  add(6, 3);
  held.release();
  all.wait();
  EXPECT_THAT(order, ::testing::ElementsAre(0, 4, 6, 1, 5, 2, 3));
}

TEST(ConstraintCompiler, AnAbandonedConstraintIsNotCompiled) {
  HeldCompiler held({});
  std::atomic<bool> called = false;
  {
    ConstraintCompiler::Waiter gone;
    (*held).compile(choice(1), 1, [&] { called = true; }, &gone);
    EXPECT_EQ((*held).counts().waiting, 2);
  }
  EXPECT_EQ((*held).counts().waiting, 1);
  held.release();
  compile(*held, choice(2));
  EXPECT_FALSE(called);
  EXPECT_EQ((*held).counts().compiled + (*held).counts().refused, 2);
}

// What takes minutes to compile, of as many clients as may begin, and what they have behind it.
TEST(ConstraintCompiler, AHostileClientHoldsUpNoOther) {
  if (!has_constraint_library()) GTEST_SKIP() << "built without structured output";
  constexpr uint64_t kHostile = 3;
  ConstraintCompiler compiler(large_vocabulary, {.most_of_one = 3, .most_seconds = 1e6});
  std::vector<ConstraintCompiler::Waiter> waiters(kHostile * 3);
  const auto ask = [&](uint64_t client, int number, ConstraintCompiler::Waiter* waiter) {
    return compiler.compile(
        {Form::kRegex, kSlow.text + std::to_string(client) + "-" + std::to_string(number)}, client,
        [] {}, waiter);
  };
  for (size_t i = 0; i < waiters.size(); ++i) {
    ask(i % kHostile, static_cast<int>(i), &waiters[i]);
  }
  // Honest ones come to their turns while all of that is under way, or waits.
  for (int i = 0; i < 3; ++i) {
    const auto outcome = compile(compiler, choice(i), kHostile);
    ASSERT_TRUE(outcome);
    EXPECT_NE(outcome->constraint, nullptr) << outcome->refusal;
  }
  EXPECT_EQ(compiler.counts().compiled, 3);
  EXPECT_EQ(compiler.counts().waiting, static_cast<int>(waiters.size()));
  // One client more than may begin at once waits, and no longer than one of them takes.
  ConstraintCompiler::Waiter fourth;
  ask(kHostile, 100, &fourth);
  ConstraintCompiler::Waiter patient;
  std::binary_semaphore done(0);
  EXPECT_FALSE(compiler.compile(choice(100), kHostile + 1, [&] { done.release(); }, &patient));
  for (ConstraintCompiler::Waiter& waiter : waiters) waiter.forget();
  done.acquire();
  EXPECT_NE(patient.outcome()->constraint, nullptr);
}

// The policies of the threads that compile, one for each, as Linux names them.
std::vector<int> policies_of_compiling_threads() {
  std::vector<int> policies;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream in(task.path() / "comm");
    std::string name;
    std::getline(in, name);
    if (name == "constraints") {
      policies.push_back(sched_getscheduler(std::stoi(task.path().filename().string())));
    }
  }
  return policies;
}

// This thread's, and that of those it makes.
class OneProcessor {
 public:
  OneProcessor() {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  ~OneProcessor() { sched_setaffinity(0, sizeof before_, &before_); }

 private:
  cpu_set_t before_{};
};

TEST(ConstraintCompiler, WhatGetsNextToNothingOfAProcessorBeginsAgainWithMore) {
  if (!has_constraint_library()) GTEST_SKIP() << "built without structured output";
  const OneProcessor one;
  ConstraintCompiler compiler(large_vocabulary, {.starved_seconds = 0.1});
  EXPECT_NE(compile(compiler, choice(0))->constraint, nullptr);  // the vocabulary is there
  EXPECT_EQ(compiler.counts().begun_again, 0);
  std::atomic<bool> ended{false};
  std::thread busy([&] {
    while (!ended) continue;
  });
  const auto outcome = compile(compiler, {Form::kRegex, ".{0,3}"});
  ended = true;
  busy.join();
  ASSERT_TRUE(outcome);
  EXPECT_NE(outcome->constraint, nullptr) << outcome->refusal;
  EXPECT_EQ(compiler.counts().begun_again, 1);
  EXPECT_THAT(policies_of_compiling_threads(),
              ::testing::UnorderedElementsAre(SCHED_IDLE, SCHED_BATCH));
}

TEST(ConstraintCompiler, OneClientLeavesRoomForOthers) {
  HeldCompiler held({});
  const CompileLimits limits;
  std::vector<ConstraintCompiler::Waiter> waiters(static_cast<size_t>(limits.most_waiting));
  int taken = 0;
  for (size_t i = 0; i < waiters.size(); ++i) {
    taken += !(*held).compile(choice(static_cast<int>(i)), 1, [] {}, &waiters[i]);
  }
  EXPECT_EQ(taken, limits.most_of_one);
  EXPECT_EQ((*held).counts().turned_away, limits.most_waiting - limits.most_of_one);
  ConstraintCompiler::Waiter other;
  EXPECT_FALSE((*held).compile(choice(-1), 2, [] {}, &other));
  held.release();
}

}  // namespace
}  // namespace recurve::compiler_test
