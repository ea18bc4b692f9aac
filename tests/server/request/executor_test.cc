#include "server/request/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <future>
#include <new>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace recurve::executor_test {

TEST(ExecutorTest, RunsEverythingThatWasPosted) {
  std::atomic<int> runs{0};
  {
    Executor executor(3);
    std::vector<std::thread> posters;
    for (int t = 0; t < 4; ++t) {
      posters.emplace_back([&] {
        for (int i = 0; i < 10'000; ++i) executor.post([&] { ++runs; });
      });
    }
    for (std::thread& poster : posters) poster.join();
  }  // its end waits for what is left
  EXPECT_EQ(runs, 40'000);
}

TEST(ExecutorTest, WakesUpForEveryTask) {
  Executor executor(2);
  std::binary_semaphore done(0);
  for (int i = 0; i < 2000; ++i) {  // asleep in between
    executor.post([&] { done.release(); });
    ASSERT_TRUE(done.try_acquire_for(std::chrono::seconds(10)));
  }
}

struct Counter final : Executor::Task {
  std::atomic<int> runs{0};
  void run() override { ++runs; }
};

TEST(ExecutorTest, TryPostRefusesWhereManyWait) {
  std::binary_semaphore go(0), busy(0);
  Counter counter;
  {
    Executor executor(1);
    executor.post([&] { busy.release(), go.acquire(); });
    busy.acquire();
    EXPECT_TRUE(executor.try_post(&counter, 0, 2));
    EXPECT_TRUE(executor.try_post(&counter, 0, 2));
    EXPECT_FALSE(executor.try_post(&counter, 0, 2));
    go.release();
  }
  EXPECT_EQ(counter.runs, 2);
}

// Counts without a lock, which only works if no two threads do it at once.
class Adder final : public Strand {
 public:
  Adder(Executor& executor, std::atomic<int>& wanted, std::atomic<int>& seen,
        std::atomic<bool>& gone)
      : Strand(executor), wanted_(wanted), seen_(seen), gone_(gone) {}
  ~Adder() override { gone_ = true; }
  void begin() { launch(); }
  void end() { retire(); }

 private:
  void work() override {
    EXPECT_FALSE(inside_.exchange(true));
    seen_ = wanted_.load();
    inside_ = false;
  }
  void failed(const std::exception&) override { ADD_FAILURE(); }
  std::atomic<bool> inside_{false};
  std::atomic<int>& wanted_;
  std::atomic<int>& seen_;
  std::atomic<bool>& gone_;
};

TEST(StrandTest, SeesTheLastPokeAndNeverRunsTwiceAtOnce) {
  std::atomic<int> wanted{0}, seen{-1};
  std::atomic<bool> gone{false};
  {
    Executor executor(4);
    auto* adder = new Adder(executor, wanted, seen, gone);
    adder->poke();  // before the launch: only remembered
    adder->begin();
    std::vector<std::thread> pokers;
    for (int t = 0; t < 4; ++t) {
      pokers.emplace_back([&] {
        for (int i = 0; i < 20'000; ++i) ++wanted, adder->poke();
      });
    }
    for (std::thread& poker : pokers) poker.join();
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (seen < 80'000 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    EXPECT_EQ(seen, 80'000);
    EXPECT_FALSE(gone);
    adder->end();
  }
  EXPECT_TRUE(gone);
}

TEST(ExecutorTest, WhatThrowsIsReportedAndTheRestRuns) {
  std::vector<std::string> said;
  std::atomic<int> runs{0};
  {
    Executor executor(1, [&](const char* what) { said.emplace_back(what); });
    executor.post([] { throw std::runtime_error("a bug"); });
    executor.post([&] { ++runs; });
  }
  EXPECT_EQ(said, std::vector<std::string>{"a bug"});
  EXPECT_EQ(runs, 1);
}

// Throws at each third look, until its failures do too.
class Thrower final : public Strand {
 public:
  Thrower(Executor& executor, std::atomic<int>& looks, std::atomic<int>& failures)
      : Strand(executor), looks_(looks), failures_(failures) {}
  void begin() { launch(); }

 private:
  void work() override {
    if (++looks_ % 3 == 0) throw std::bad_alloc();
  }
  void failed(const std::exception& error) override {
    EXPECT_NE(dynamic_cast<const std::bad_alloc*>(&error), nullptr);
    if (++failures_ == 2) throw;
  }
  std::atomic<int>&looks_, &failures_;
};

TEST(StrandTest, IsToldWhatItsWorkHasThrown) {
  std::atomic<int> looks{0}, failures{0}, reported{0};
  Executor executor(2, [&](const char*) { ++reported; });
  auto* thrower = new Thrower(executor, looks, failures);
  thrower->begin();
  const auto reach = [&](int wanted) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (looks < wanted && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    EXPECT_EQ(looks, wanted);
  };
  for (int look = 1; look < 6; ++look) {
    reach(look);
    thrower->poke();
  }
  reach(6);
  while (reported == 0) std::this_thread::yield();
  EXPECT_EQ(failures, 2);
  delete thrower;  // no thread runs it any more
}

// What it reads is known only once it looks: then it waits among what is about as long.
class Reader final : public Strand {
 public:
  Reader(Executor& executor, size_t bytes, std::atomic<int>& looks, std::atomic<bool>& read)
      : Strand(executor), bytes_(bytes), looks_(looks), read_(read) {}
  void begin() { launch(); }
  void end() { retire(); }

 private:
  void work() override {
    ++looks_;
    if (may_read(bytes_)) read_ = true;
  }
  void failed(const std::exception&) override { std::abort(); }
  const size_t bytes_;
  std::atomic<int>& looks_;
  std::atomic<bool>& read_;
};

TEST(StrandTest, ReadsWhatIsLongWhereLongTasksMayRun) {
  Executor executor(2);
  std::promise<void> gate;
  std::atomic<bool> held{false};
  class Long final : public Executor::Task {
   public:
    Long(std::future<void> until, std::atomic<bool>& held)
        : until_(std::move(until)), held_(held) {}
    void run() override {
      held_ = true;
      until_.wait();
    }

   private:
    std::future<void> until_;
    std::atomic<bool>& held_;
  } task(gate.get_future(), held);
  constexpr size_t kLong = 1 << 20;
  ASSERT_TRUE(executor.try_post(&task, kLong, 10));
  while (!held) std::this_thread::yield();

  std::atomic<int> looks{0};
  std::atomic<bool> read{false};
  auto* reader = new Reader(executor, kLong, looks, read);
  reader->begin();
  // Short tasks behind it run, and it does not, however often: the one thread for long ones is
  // held.
  std::atomic<int> short_ones{0};
  for (int i = 1; i <= 100; ++i) {
    executor.post([&] { ++short_ones; });
    while (short_ones < i) std::this_thread::yield();
  }
  EXPECT_EQ(looks, 1);
  EXPECT_FALSE(read);
  gate.set_value();
  while (!read) std::this_thread::yield();
  EXPECT_EQ(looks, 2);
  reader->end();
}

}  // namespace recurve::executor_test
