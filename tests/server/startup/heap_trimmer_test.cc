#include "server/startup/heap_trimmer.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "server/observe/process_memory.h"

namespace recurve::heap_trimmer_test {

constexpr int kThreads = 3, kKeep = 500;
constexpr size_t kBytes = 500;
constexpr int64_t kSmall = 4 << 20;  // may stay after any peak

using Pieces = std::vector<std::unique_ptr<char[]>>;

// Much, of which a little stays, everywhere.
void have_a_peak(int count, Pieces* kept) {
  Pieces pieces;
  for (int i = 0; i < count; ++i) {
    pieces.push_back(std::make_unique<char[]>(kBytes));
    std::fill_n(pieces.back().get(), kBytes, 'x');
  }
  for (int i = 0; i < count; i += kKeep) {
    kept->push_back(std::move(pieces[static_cast<size_t>(i)]));
  }
}

class HeapTrimmerTest : public ::testing::TestWithParam<int> {};

TEST_P(HeapTrimmerTest, WhatAPeakHasTakenGoesBack) {
  const int pieces = GetParam();
  const int64_t before = process_memory().resident;
  std::vector<Pieces> kept(kThreads);
  std::vector<std::thread> threads;
  for (Pieces& of_thread : kept) threads.emplace_back(have_a_peak, pieces, &of_thread);
  for (std::thread& thread : threads) thread.join();
  const int64_t after = process_memory().resident;
  const int64_t peak = int64_t{kThreads} * pieces * static_cast<int64_t>(kBytes);
  const int64_t most = std::max(peak / 10, kSmall);
  ASSERT_GT(after - before, peak / 2) << "or the test says nothing";
  {
    const HeapTrimmer trimmer(std::chrono::milliseconds(5));
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (process_memory().resident - before > most && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  EXPECT_LE(process_memory().resident - before, most);
}

// The smaller one is a third of what the demo models' server takes.
INSTANTIATE_TEST_SUITE_P(Peaks, HeapTrimmerTest, ::testing::Values(10'000, 200'000));

}  // namespace recurve::heap_trimmer_test
