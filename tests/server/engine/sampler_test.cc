
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/support/kernels/row_sampler.h"

namespace recurve::sampler_test {

using Sampler = testing::RowSampler;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const TokenHistory kNothingSeen;

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0;
  return params;
}

SamplingVocab vocab(int32_t n, std::vector<int32_t> eos_ids = {}) {
  return {.rows = n, .usable = n, .eos_ids = std::move(eos_ids)};
}

int32_t sample(const std::vector<float>& row, const SamplingParams& params,
               const TokenHistory& history = kNothingSeen, int64_t index = 0) {
  return Sampler(vocab(static_cast<int32_t>(row.size()))).sample(row, params, history, index).id;
}

// How often each id comes in `draws` draws.
std::map<int32_t, int> tally(const std::vector<float>& row, const SamplingParams& params,
                             int draws) {
  Sampler sampler(vocab(static_cast<int32_t>(row.size())));
  std::map<int32_t, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[sampler.sample(row, params, kNothingSeen, i).id];
  return counts;
}

// Pearson's statistic of the counts against probabilities p; ids with p = 0 must not occur.
double chi_square(const std::map<int32_t, int>& counts, const std::vector<double>& p, int draws) {
  double sum = 0;
  for (size_t id = 0; id < p.size(); ++id) {
    const auto found = counts.find(static_cast<int32_t>(id));
    const double seen = found == counts.end() ? 0 : found->second;
    if (p[id] == 0) {
      EXPECT_EQ(seen, 0) << id;
    } else {
      sum += (seen - p[id] * draws) * (seen - p[id] * draws) / (p[id] * draws);
    }
  }
  return sum;
}

std::vector<float> logs(const std::vector<double>& p) {
  std::vector<float> row;
  for (const double x : p) row.push_back(static_cast<float>(std::log(x)));
  return row;
}

TEST(Greedy, TakesTheGreatestAndTheLowerIdOfEquals) {
  EXPECT_EQ(sample({1, 3, 2}, greedy()), 1);
  EXPECT_EQ(sample({1, 3, 3, 3}, greedy()), 1);
  EXPECT_EQ(sample({-5, -5}, greedy()), 0);
  EXPECT_EQ(sample({-kInfinity, -7}, greedy()), 1);
  EXPECT_EQ(sample({42}, greedy()), 0);
}

TEST(Greedy, IgnoresFiltersAndSeed) {
  SamplingParams params = greedy();
  params.typical_p = 0.01f;  // would drop the likeliest id
  params.top_p = 0.5f;
  params.top_k = 2;
  params.min_p = 0.9f;
  params.seed = 99;
  EXPECT_EQ(sample(logs({0.5, 0.25, 0.125, 0.125}), params), 0);
}

TEST(Masks, IdsWithoutATokenAreNeverSampled) {
  Sampler sampler({.rows = 6, .usable = 4, .eos_ids = {}});
  EXPECT_EQ(sampler.sample(std::vector<float>{0, 1, 2, 1, 50, 60}, greedy(), kNothingSeen, 0).id,
            2);
  // Not even looked at.
  const std::vector<float> row = {0, 1, 2, 1, kNan, kInfinity};
  SamplingParams params;
  params.logprobs = 6;
  for (int i = 0; i < 200; ++i) {
    const SampledToken token = sampler.sample(row, params, kNothingSeen, i);
    ASSERT_EQ(token.error, nullptr);
    EXPECT_LT(token.id, 4);
    EXPECT_EQ(token.top.size(), 4u);
  }
}

TEST(Masks, OnlyAllowedIds) {
  SamplingParams params = greedy();
  params.allowed_ids = {2, 1, 2};
  EXPECT_EQ(sample({9, 3, 4, 8}, params), 2);
  params.temperature = 1;
  const auto counts = tally({0, 0, 0, 0}, params, 1000);
  EXPECT_EQ(counts.size(), 2u);
  // An id named twice is not twice as likely: within five standard deviations of a half.
  EXPECT_NEAR(counts.at(1), 500, 5 * std::sqrt(250));
}

TEST(Masks, NothingEndsTheAnswerBeforeMinTokens) {
  Sampler sampler(vocab(4, {0}));
  const std::vector<float> row = {9, 8, 7, 6};
  SamplingParams params = greedy();
  params.min_tokens = 2;
  params.stop_ids = {1};
  EXPECT_EQ(sampler.sample(row, params, kNothingSeen, 0).id, 2);
  EXPECT_EQ(sampler.sample(row, params, kNothingSeen, 1).id, 2);
  EXPECT_EQ(sampler.sample(row, params, kNothingSeen, 2).id, 0);
  params.ignore_eos = true;
  EXPECT_EQ(sampler.sample(row, params, kNothingSeen, 1).id, 0);
}

TEST(Masks, BiasCannotUndoThem) {
  SamplingParams params = greedy();
  params.allowed_ids = {1};
  params.logit_bias = {{0, 1000}};
  EXPECT_EQ(sample({0, 0, 0}, params), 1);
}

TEST(Bias, IsAddedToTheLogit) {
  SamplingParams params = greedy();
  params.logit_bias = {{0, -2.0f}, {2, 0.5f}};
  EXPECT_EQ(sample({3, 2, 1}, params), 1);
  params.logit_bias = {{0, -2.0f}, {2, 1.5f}};
  EXPECT_EQ(sample({3, 2, 1}, params), 2);
  params.temperature = 1;
  params.logit_bias = {{1, std::log(3.0f)}};
  constexpr int kDraws = 4000;
  EXPECT_LT(chi_square(tally({0, 0}, params, kDraws), {0.25, 0.75}, kDraws), 10.8);
}

// Greedy choices between two logits, one of which a penalty moves to a value worked out by hand.
TEST(Penalties, RepetitionDividesPositiveAndMultipliesNegativeLogitsOnce) {
  SamplingParams params = greedy();
  params.repetition_penalty = 2;
  TokenHistory history;
  for (int i = 0; i < 3; ++i) history.add_prompt(0);
  history.add_generated(1);
  history.add_generated(1);
  EXPECT_EQ(sample({4, -9, 1.9f}, params, history), 0);    // 4 / 2 = 2
  EXPECT_EQ(sample({4, -9, 2.1f}, params, history), 2);    // once, for all three occurrences
  EXPECT_EQ(sample({-9, -1, -1.9f}, params, history), 2);  // -1 * 2 = -2
  EXPECT_EQ(sample({-9, -1, -2.1f}, params, history), 1);
  EXPECT_EQ(sample({0, -9, -0.1f}, params, history), 0);
}

TEST(Penalties, PresenceAndFrequencyCountTheAnswerOnly) {
  TokenHistory history;
  for (int i = 0; i < 10; ++i) history.add_prompt(0);
  for (int i = 0; i < 3; ++i) history.add_generated(1);
  SamplingParams params = greedy();
  params.presence_penalty = 0.5f;
  EXPECT_EQ(sample({4, 4.4f, 0}, params, history), 0);  // 4.4 - 0.5 = 3.9; the prompt's stays 4
  EXPECT_EQ(sample({4, 4.6f, 0}, params, history), 1);
  params.frequency_penalty = 0.25f;
  EXPECT_EQ(sample({4, 5.2f, 0}, params, history), 0);  // 5.2 - 0.5 - 3 * 0.25 = 3.95
  EXPECT_EQ(sample({4, 5.3f, 0}, params, history), 1);
  params.presence_penalty = 0;
  params.frequency_penalty = -2;
  EXPECT_EQ(sample({4, -1.9f, 0}, params, history), 1);  // -1.9 + 3 * 2 = 4.1
}

TEST(Penalties, ComeAfterBiasRepetitionFirst) {
  TokenHistory history;
  history.add_generated(0);
  SamplingParams params = greedy();
  params.logit_bias = {{0, 4}};
  params.repetition_penalty = 2;
  params.presence_penalty = 1;
  EXPECT_EQ(sample({2, 1.9f}, params, history), 0);  // (2 + 4) / 2 - 1 = 2
  EXPECT_EQ(sample({2, 2.1f}, params, history), 1);
}

TEST(Penalties, IdsBeyondTheTokenizerInAPromptDoNoHarm) {
  TokenHistory history;
  history.add_prompt(3);
  history.add_prompt(1000000);
  SamplingParams params = greedy();
  params.repetition_penalty = 2;
  Sampler sampler({.rows = 4, .usable = 3, .eos_ids = {}});
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 2, 3, 4}, params, history, 0).id, 2);
}

TEST(Filters, TopK) {
  SamplingParams params;
  params.top_k = 2;
  constexpr int kDraws = 4000;
  EXPECT_LT(chi_square(tally(logs({0.1, 0.3, 0.6}), params, kDraws), {0, 1.0 / 3, 2.0 / 3}, kDraws),
            10.8);
  params.top_k = 1;
  EXPECT_EQ(tally(logs({0.1, 0.3, 0.6}), params, 100).size(), 1u);
  EXPECT_EQ(tally({1, 1, 1}, params, 100).begin()->first, 0);  // ties: the lower id stays
  for (const int32_t all : {0, 3, 4, std::numeric_limits<int32_t>::max()}) {
    params.top_k = all;
    EXPECT_LT(chi_square(tally(logs({0.1, 0.3, 0.6}), params, kDraws), {0.1, 0.3, 0.6}, kDraws),
              13.8);
  }
}

TEST(Filters, TopPKeepsTheIdThatReachesIt) {
  SamplingParams params;
  params.top_p = 0.7f;
  constexpr int kDraws = 4000;
  EXPECT_LT(chi_square(tally(logs({0.1, 0.3, 0.6}), params, kDraws), {0, 1.0 / 3, 2.0 / 3}, kDraws),
            10.8);
  params.top_p = 0.5f;
  EXPECT_EQ(tally(logs({0.1, 0.3, 0.6}), params, 100).size(), 1u);
  params.top_p = 1e-30f;
  EXPECT_EQ(tally(logs({0.1, 0.3, 0.6}), params, 100).begin()->first, 2);
}

TEST(Filters, MinPIsRelativeToTheLikeliest) {
  SamplingParams params;
  params.min_p = 0.4f;  // 0.3 / 0.6 stays, 0.1 / 0.6 goes
  constexpr int kDraws = 4000;
  EXPECT_LT(chi_square(tally(logs({0.1, 0.3, 0.6}), params, kDraws), {0, 1.0 / 3, 2.0 / 3}, kDraws),
            10.8);
  params.min_p = 1;
  EXPECT_EQ(tally(logs({0.1, 0.3, 0.6}), params, 100).size(), 1u);
  EXPECT_EQ(tally({2, 2, 1}, params, 1000).size(), 2u);
}

// p = 1/2, 1/4, 1/8, 1/8: entropy 1.213, -log p 0.693, 1.386, 2.079; so the ids' distances are
// 0.520, 0.173, 0.866, 0.866, and the second is the most typical.
TEST(Filters, TypicalByHand) {
  const auto row = logs({0.5, 0.25, 0.125, 0.125});
  SamplingParams params;
  constexpr int kDraws = 4000;
  params.typical_p = 0.2f;
  EXPECT_LT(chi_square(tally(row, params, 100), {0, 1, 0, 0}, 100), 0.001);
  params.typical_p = 0.3f;
  EXPECT_LT(chi_square(tally(row, params, kDraws), {2.0 / 3, 1.0 / 3, 0, 0}, kDraws), 10.8);
  params.typical_p = 0.8f;
  EXPECT_LT(chi_square(tally(row, params, kDraws), {4.0 / 7, 2.0 / 7, 1.0 / 7, 0}, kDraws), 13.8);
}

TEST(Temperature, SharpensAndFlattens) {
  constexpr int kDraws = 20000;
  const auto row = logs({0.05, 0.05, 0.1, 0.1, 0.1, 0.2, 0.2, 0.2});
  SamplingParams params;
  EXPECT_LT(chi_square(tally(row, params, kDraws), {.05, .05, .1, .1, .1, .2, .2, .2}, kDraws),
            24.3);            // seven degrees of freedom, one in a thousand
  params.temperature = 0.5f;  // squares: 1 1 4 4 4 16 16 16, sum 62
  EXPECT_LT(chi_square(tally(row, params, kDraws),
                       {1 / 62., 1 / 62., 4 / 62., 4 / 62., 4 / 62., 16 / 62., 16 / 62., 16 / 62.},
                       kDraws),
            24.3);
  params.temperature = kMaxTemperature;
  EXPECT_LT(chi_square(tally(row, params, kDraws), std::vector<double>(8, 0.125), kDraws), 24.3);
}

TEST(Temperature, TheSmallestIsGreedyButForTies) {
  SamplingParams params;
  params.temperature = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(tally({1, 3, 2.9999998f}, params, 100).begin()->first, 1);
  EXPECT_EQ(tally({1, 3, 2.9999998f}, params, 100).size(), 1u);
  EXPECT_EQ(tally({3, 1, 3}, params, 100).size(), 2u);
  params.top_k = 2;
  params.typical_p = 0.9f;
  params.top_p = 0.9f;
  params.min_p = 0.1f;
  EXPECT_EQ(tally({1, 3, 2.9999998f}, params, 100).size(), 1u);
}

TEST(Seeds, SameSeedSameTokensOtherSeedOthers) {
  const std::vector<float> row(1000, 0.0f);
  const auto tokens = [&](uint64_t seed) {
    SamplingParams params;
    params.seed = seed;
    Sampler sampler(vocab(1000));
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < 100; ++i) {
      ids.push_back(sampler.sample(row, params, kNothingSeen, i).id);
    }
    return ids;
  };
  EXPECT_EQ(tokens(7), tokens(7));
  EXPECT_NE(tokens(7), tokens(8));
  const auto ids = tokens(7);
  EXPECT_GT(std::set<int32_t>(ids.begin(), ids.end()).size(), 80u);  // 95 expected
}

// One sampler serves all requests of the engine: what it did before must not show.
TEST(Seeds, NeighboursChangeNothing) {
  std::mt19937 generator(3);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> row(500), other(500);
  for (float& x : row) x = normal(generator);
  for (float& x : other) x = normal(generator);
  SamplingParams params, neighbour;
  params.top_p = 0.9f;
  params.logprobs = 3;
  neighbour.typical_p = 0.5f;
  neighbour.allowed_ids = {1, 2, 3};
  neighbour.logprobs = 20;
  Sampler shared(vocab(500));
  for (int64_t i = 0; i < 50; ++i) {
    Sampler alone(vocab(500));
    shared.sample(other, neighbour, kNothingSeen, i);
    const SampledToken a = shared.sample(row, params, kNothingSeen, i);
    const SampledToken b = alone.sample(row, params, kNothingSeen, i);
    EXPECT_EQ(a.id, b.id);
    EXPECT_EQ(a.logprob, b.logprob);
    ASSERT_EQ(a.top.size(), b.top.size());
    for (size_t j = 0; j < a.top.size(); ++j) EXPECT_EQ(a.top[j].id, b.top[j].id);
  }
}

TEST(Logprobs, AreTheModelsOwn) {
  SamplingParams params;
  params.temperature = 0.1f;
  params.top_k = 1;
  params.logit_bias = {{2, 100}};
  params.repetition_penalty = 3;
  params.logprobs = 3;
  TokenHistory history;
  history.add_prompt(0);
  Sampler sampler({.rows = 5, .usable = 4, .eos_ids = {}});
  const std::vector<float> row = {0, std::log(2.0f), std::log(4.0f), 0, 99};
  const SampledToken token = sampler.sample(row, params, history, 0);
  EXPECT_EQ(token.id, 2);
  EXPECT_FLOAT_EQ(token.logprob, std::log(0.5f));
  ASSERT_EQ(token.top.size(), 3u);
  EXPECT_EQ(token.top[0].id, 2);
  EXPECT_EQ(token.top[1].id, 1);
  EXPECT_EQ(token.top[2].id, 0);  // equal to id 3
  EXPECT_FLOAT_EQ(token.top[0].logprob, std::log(0.5f));
  EXPECT_FLOAT_EQ(token.top[1].logprob, std::log(0.25f));
  EXPECT_FLOAT_EQ(token.top[2].logprob, std::log(0.125f));
}

TEST(Logprobs, AsManyAsAskedAndThere) {
  const std::vector<float> row = {1, 1, 1, -kInfinity};
  Sampler sampler(vocab(4));
  SamplingParams params = greedy();
  EXPECT_TRUE(sampler.sample(row, params, kNothingSeen, 0).top.empty());
  params.logprobs = 0;
  EXPECT_TRUE(sampler.sample(row, params, kNothingSeen, 0).top.empty());
  EXPECT_FLOAT_EQ(sampler.sample(row, params, kNothingSeen, 0).logprob, -std::log(3.0f));
  params.logprobs = 100;
  const auto top = sampler.sample(row, params, kNothingSeen, 0).top;
  ASSERT_EQ(top.size(), 3u);
  for (int32_t id = 0; id < 3; ++id) EXPECT_EQ(top[static_cast<size_t>(id)].id, id);
}

TEST(Logprobs, ScoreOfAGivenToken) {
  Sampler sampler({.rows = 4, .usable = 3, .eos_ids = {}});
  const std::vector<float> row = {0, std::log(3.0f), -kInfinity, 7};
  const SampledToken token = sampler.score(row, 0, 1);
  EXPECT_EQ(token.id, 0);
  EXPECT_FLOAT_EQ(token.logprob, std::log(0.25f));
  ASSERT_EQ(token.top.size(), 1u);
  EXPECT_EQ(token.top[0].id, 1);
  EXPECT_EQ(sampler.score(row, 2, 0).logprob, -kInfinity);
  EXPECT_EQ(sampler.score(row, 3, 0).logprob, -kInfinity);
  EXPECT_EQ(sampler.score(std::vector<float>{0, kNan, 0, 0}, 0, 1).id, -1);
}

TEST(BadRows, AreErrorsOfTheirRequest) {
  SamplingParams params;
  for (const float temperature : {0.0f, 1.0f}) {
    params.temperature = temperature;
    Sampler sampler(vocab(3));
    for (const float bad : {kNan, -kNan, kInfinity}) {
      const SampledToken token =
          sampler.sample(std::vector<float>{1, bad, 2}, params, kNothingSeen, 0);
      EXPECT_EQ(token.id, -1);
      EXPECT_STREQ(token.error, "the model's logits are not finite numbers");
    }
    const SampledToken none =
        sampler.sample(std::vector<float>(3, -kInfinity), params, kNothingSeen, 0);
    EXPECT_EQ(none.id, -1);
    EXPECT_STREQ(none.error, "no token to sample: all are masked or impossible");
    EXPECT_EQ(sampler.sample(std::vector<float>{1, 2, 3}, params, kNothingSeen, 0).error, nullptr);
  }
}

TEST(BadRows, ANanAtAnIdThatIsNotAllowedIsStillABrokenModel) {
  SamplingParams params = greedy();
  params.allowed_ids = {0};
  EXPECT_EQ(sample({1, kNan}, params), -1);
}

TEST(BadRows, AllThatIsAllowedIsImpossible) {
  SamplingParams params;
  params.allowed_ids = {1};
  EXPECT_EQ(sample({1, -kInfinity}, params), -1);
}

TEST(BadRows, HugeLogitsAreFine) {
  constexpr float kHuge = std::numeric_limits<float>::max();
  SamplingParams params;
  params.logprobs = 2;
  Sampler sampler(vocab(3));
  const SampledToken token =
      sampler.sample(std::vector<float>{-kHuge, kHuge, 0}, params, kNothingSeen, 0);
  EXPECT_EQ(token.id, 1);
  EXPECT_EQ(token.logprob, 0);
}

TEST(Stop, EosAndStopIds) {
  const SamplingVocab words = vocab(10, {0, 9});
  SamplingParams params;
  params.stop_ids = {5, 9};
  EXPECT_EQ(stop_kind(0, params, words, 0), StopKind::kEos);
  EXPECT_EQ(stop_kind(9, params, words, 0), StopKind::kEos);
  EXPECT_EQ(stop_kind(5, params, words, 0), StopKind::kStopId);
  EXPECT_EQ(stop_kind(4, params, words, 0), StopKind::kNone);
  params.ignore_eos = true;
  EXPECT_EQ(stop_kind(0, params, words, 0), StopKind::kNone);
  EXPECT_EQ(stop_kind(9, params, words, 0), StopKind::kStopId);
  params.ignore_eos = false;
  params.min_tokens = 3;
  EXPECT_EQ(stop_kind(0, params, words, 2), StopKind::kNone);
  EXPECT_EQ(stop_kind(5, params, words, 2), StopKind::kNone);
  EXPECT_EQ(stop_kind(0, params, words, 3), StopKind::kEos);
}

}  // namespace recurve::sampler_test
