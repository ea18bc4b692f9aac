// The weights of experts that a step of several sequences reads on the CPU, and how often.
#include <gtest/gtest.h>

#if RECURVE_CPU
#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/stream.h"

namespace recurve::testing::expert_reads_test {

constexpr int kExperts = 40, kTop = 8, kN = 256, kK = 64;

// How often each row of all experts' matrices was multiplied.
std::vector<std::atomic<int>> reads;
const float* first_weight = nullptr;

void count_rows(const LinearArgs& a, const std::byte* rounded, int64_t row_begin, int64_t row_end,
                int64_t begin, int64_t end) {
  EXPECT_EQ(rounded, nullptr);
  EXPECT_EQ(row_begin, 0);
  const int64_t matrix = (static_cast<const float*>(a.W.data) - first_weight) / kK;
  for (int64_t n = begin; n < end; ++n) ++reads[static_cast<size_t>(matrix + n)];
  for (int64_t row = 0; row < row_end; ++row) {
    std::fill(a.y + row * a.W.N + begin, a.y + row * a.W.N + end, 0.0f);
  }
}

cpu::LinearProducts choose(const LinearArgs&) { return {.block = count_rows}; }

// Each row's experts drawn, all different; pairs by expert.
struct Pairs {
  explicit Pairs(int rows) {
    std::mt19937_64 random(5);
    std::vector<int> experts(kExperts);
    std::iota(experts.begin(), experts.end(), 0);
    std::vector<std::vector<int32_t>> of_expert(kExperts);
    for (int row = 0; row < rows; ++row) {
      std::shuffle(experts.begin(), experts.end(), random);
      for (int i = 0; i < kTop; ++i) of_expert[experts[i]].push_back(row * kTop + i);
    }
    for (const auto& own : of_expert) {
      pair.insert(pair.end(), own.begin(), own.end());
      begin.push_back(static_cast<int32_t>(pair.size()));
    }
  }
  std::vector<int32_t> begin = {0}, pair;
};

class ExpertReads : public ::testing::TestWithParam<std::tuple<int, int, bool>> {};

TEST_P(ExpertReads, EachChosenMatrixOnceAndNoOther) {
  const auto& [rows, threads, gated] = GetParam();
  cpu::ThreadPool pool(threads);
  cpu::CpuStream stream(pool);
  const Pairs pairs(rows);
  const std::vector<float> W(static_cast<size_t>(kExperts) * kN * kK);
  const auto all = static_cast<size_t>(rows) * kTop;
  const std::vector<float> x(all * kK), weight(all);
  std::vector<float> y(all * kN);
  reads = std::vector<std::atomic<int>>(static_cast<size_t>(kExperts) * kN);
  first_weight = W.data();
  cpu::experts_with(choose,
                    {.rows = rows,
                     .top = kTop,
                     .E = kExperts,
                     .W = {.N = kExperts * kN, .K = kK, .data = W.data()},
                     .begin = pairs.begin.data(),
                     .pair = pairs.pair.data(),
                     .weight = gated ? nullptr : weight.data(),
                     .x = x.data(),
                     .y = y.data()},
                    stream);
  for (int e = 0; e < kExperts; ++e) {
    const int wanted = pairs.begin[e + 1] > pairs.begin[e] ? 1 : 0;
    for (int n = 0; n < kN; ++n) ASSERT_EQ(reads[e * kN + n], wanted) << e << " " << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, ExpertReads,
                         ::testing::Combine(::testing::Values(1, 8, 64), ::testing::Values(1, 3),
                                            ::testing::Bool()));

}  // namespace recurve::testing::expert_reads_test
#endif
