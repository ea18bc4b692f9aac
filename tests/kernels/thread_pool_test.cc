#include <gtest/gtest.h>

#if RECURVE_CPU
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/thread_pool.h"

namespace recurve::cpu::thread_pool_test {

class ThreadPoolTest : public ::testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, EachIndexOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  for (const int count : {0, 1, 2, 3, 100, 1000}) {
    std::vector<int> calls(count);  // not atomic: each place is one thread's
    pool.parallel_for(count, [&](int64_t index) { ++calls[index]; });
    for (const int n : calls) ASSERT_EQ(n, 1);
  }
}

// Loops so short that workers meet loops that open, close and open again.
TEST_P(ThreadPoolTest, ManyShortLoops) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> sums(3);
  for (int64_t round = 0; round < 20000; ++round) {
    pool.parallel_for(3, [&](int64_t index) { sums[index] += round; });
  }
  for (const int64_t sum : sums) EXPECT_EQ(sum, int64_t{20000} * 19999 / 2);
}

TEST_P(ThreadPoolTest, WakesFromSleep) {
  ThreadPool pool(GetParam());
  std::atomic<int> calls = 0;
  for (int round = 0; round < 10; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    pool.parallel_for(8, [&](int64_t) { ++calls; });
  }
  EXPECT_EQ(calls, 80);
}

// Every thread takes part when each index waits for the others.
TEST_P(ThreadPoolTest, UsesAllThreads) {
  ThreadPool pool(GetParam());
  std::atomic<int> inside = 0;
  pool.parallel_for(GetParam(), [&](int64_t) {
    ++inside;
    while (inside < GetParam()) std::this_thread::yield();
  });
  EXPECT_EQ(inside, GetParam());
}

// While other threads use the same cores: workers leave a loop and come back to it.
TEST_P(ThreadPoolTest, LosesNothingOnABusyMachine) {
  ThreadPool pool(GetParam());
  std::atomic<bool> busy = true;
  std::vector<std::jthread> others;
  for (int i = 0; i < ThreadPool::default_threads(); ++i) {
    others.emplace_back([&] {
      while (busy) {
      }
    });
  }
  for (int round = 0; round < 20; ++round) {
    std::vector<int> calls(100);
    pool.parallel_for(100, [&](int64_t index) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(50);
      while (std::chrono::steady_clock::now() < end) {
      }
      ++calls[index];
    });
    for (const int n : calls) ASSERT_EQ(n, 1);
    std::atomic<int> inside = 0;
    pool.parallel_for(GetParam(), [&](int64_t) {
      ++inside;
      while (inside < GetParam()) std::this_thread::yield();
    });
  }
  busy = false;
}

// A thread goes forward through its own part, and takes what is left of the others' from their
// ends.
TEST(ThreadPool, PartsAreReadInTheirOrder) {
  ThreadPool pool(2);
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<bool> other_began = false, caller_ended = false;
  std::vector<int64_t> callers, others;
  pool.parallel_for(8, [&](int64_t index) {
    if (std::this_thread::get_id() == caller) {
      callers.push_back(index);
      while (!other_began) std::this_thread::yield();
      if (callers.size() == 7) caller_ended = true;
    } else {
      others.push_back(index);
      other_began = true;
      while (!caller_ended) std::this_thread::yield();
    }
  });
  EXPECT_EQ(callers, (std::vector<int64_t>{0, 1, 2, 3, 7, 6, 5}));
  EXPECT_EQ(others, (std::vector<int64_t>{4}));
}

TEST_P(ThreadPoolTest, NestedLoopsAndSecondCallersRunAlone) {
  ThreadPool pool(GetParam());
  std::atomic<int> calls = 0;
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        pool.parallel_for(4, [&](int64_t) { pool.parallel_for(2, [&](int64_t) { ++calls; }); });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(calls, 3 * 200 * 4 * 2);
}

TEST_P(ThreadPoolTest, BlocksCoverTheRange) {
  ThreadPool pool(GetParam());
  for (const int64_t count : {0, 1, 7, 1000}) {
    for (const int64_t cost : {int64_t{0}, int64_t{1}, int64_t{1000}, kGrain * 10}) {
      std::vector<int> calls(count);
      for_blocks(pool, count, cost, [&](int64_t begin, int64_t end) {
        for (int64_t index = begin; index < end; ++index) ++calls[index];
      });
      for (const int n : calls) ASSERT_EQ(n, 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, ::testing::Values(1, 2, 3, 8));

}  // namespace recurve::cpu::thread_pool_test
#else
TEST(ThreadPool, IsTested) { GTEST_SKIP() << "built without Highway"; }
#endif
