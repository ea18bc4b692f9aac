// The sampling kernel of a GPU against the reference, which sampler_oracle_test.cc compares with
// sorting everything: the same ids from the same logits, whatever they are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "tests/support/kernels/devices.h"
#include "tests/support/kernels/random_values.h"
#include "tests/support/kernels/row_sampler.h"

namespace recurve::testing::sample_devices_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class SampleDevices : public ::testing::TestWithParam<int32_t /* usable ids */>,
                      protected RandomValues {
 protected:
  SampleDevices() : RandomValues(static_cast<uint64_t>(GetParam())) {}
  void SetUp() override {
    const std::string why = why_unusable("cuda:0");
    if (!why.empty()) GTEST_SKIP() << why;
  }
  int32_t id() { return integer(0, GetParam() - 1); }

  // Some with many equals, some without numbers, some with impossible ids.
  std::vector<float> row() {
    std::normal_distribution<float> normal(real(-20, 20), coin(0.2) ? 1e-3f : real(0.1f, 8));
    const bool coarse = coin(0.4), sparse = coin(0.2), flat = coin(0.05);
    std::vector<float> logits(static_cast<size_t>(GetParam()) + 5, 3.0f);
    for (float& x : logits) {
      if (!flat) x = normal(generator_);
      if (coarse) x = std::round(x * 2) / 2;
      if (sparse && coin(0.7)) x = -kInfinity;
    }
    if (coin(0.05)) logits[static_cast<size_t>(id())] = std::nanf("");
    if (coin(0.05)) logits[static_cast<size_t>(id())] = kInfinity;
    if (coin(0.03)) std::fill(logits.begin(), logits.end(), -kInfinity);
    for (size_t i = static_cast<size_t>(GetParam()); i < logits.size(); ++i) {
      logits[i] = std::nanf("");  // ids without a token: never read
    }
    return logits;
  }

  SamplingParams params() {
    SamplingParams p;
    p.temperature = coin(0.2) ? 0.0f : coin(0.3) ? 1.0f : coin(0.1) ? 1e-30f : real(0.05f, 3);
    if (coin(0.4)) p.top_k = integer(1, coin(0.7) ? 60 : GetParam() + 3);
    if (coin(0.4)) p.top_p = coin(0.1) ? 1e-20f : real(0.01f, 1);
    if (coin(0.3)) p.min_p = coin(0.1) ? 1.0f : real(0, 0.5f);
    if (coin(0.3)) p.typical_p = real(0.05f, 1);
    if (coin(0.3)) p.repetition_penalty = real(0.5f, 2);
    if (coin(0.3)) p.presence_penalty = real(-2, 2);
    if (coin(0.3)) p.frequency_penalty = real(-2, 2);
    if (coin(0.3)) p.logit_bias = {{id(), real(-5, 5)}};
    if (coin(0.2)) {
      for (int i = integer(1, 20); i > 0; --i) p.allowed_ids.push_back(id());
    }
    if (coin(0.3)) p.min_tokens = 2;
    if (coin(0.3)) p.stop_ids = {id(), id()};
    p.ignore_eos = coin(0.3);
    p.seed = generator_();
    p.max_tokens = 4;
    p.logprobs = coin(0.7) ? -1 : integer(0, kMaxLogprobs);
    return p;
  }

  TokenHistory history() {
    TokenHistory history;
    for (int i = integer(0, 50); i > 0; --i) {
      coin(0.5) ? history.add_prompt(id()) : history.add_generated(id());
    }
    return history;
  }

  static void expect_same_logprobs(const SampledToken& got, const SampledToken& want) {
    EXPECT_EQ(got.logprob, want.logprob);
    ASSERT_EQ(got.top.size(), want.top.size());
    for (size_t i = 0; i < want.top.size(); ++i) {
      ASSERT_EQ(got.top[i].id, want.top[i].id) << i;
      ASSERT_EQ(got.top[i].logprob, want.top[i].logprob) << i;
    }
  }
};

TEST_P(SampleDevices, GiveTheSameTokens) {
  const SamplingVocab vocab{
      .rows = GetParam() + 5, .usable = GetParam(), .eos_ids = {GetParam() / 2}};
  RowSampler device(vocab, "cuda:0"), reference(vocab);
  const int rounds = GetParam() > 10000 ? 120 : 500;
  int sampled = 0, errors = 0;
  for (int round = 0; round < rounds; ++round) {
    const SamplingParams p = params();
    const std::vector<float> logits = row();
    const TokenHistory seen = history();
    for (const int64_t index : {0, 1, 2, 3}) {
      const SampledToken got = device.sample(logits, p, seen, index);
      const SampledToken want = reference.sample(logits, p, seen, index);
      ASSERT_EQ(got.id, want.id) << "round " << round << " index " << index << " temperature "
                                 << p.temperature << " top_k " << p.top_k << " typical_p "
                                 << p.typical_p << " top_p " << p.top_p << " min_p " << p.min_p;
      ASSERT_STREQ(got.error, want.error);
      expect_same_logprobs(got, want);
      const SampleProgress here = device.progress(), there = reference.progress();
      ASSERT_EQ(here.token, there.token);
      ASSERT_EQ(here.generated, there.generated);
      ASSERT_EQ(here.ended, there.ended) << "round " << round << " index " << index;
      ++(want.id < 0 ? errors : sampled);
    }
    const int32_t some = id();
    const int top = integer(0, kMaxLogprobs);
    const SampledToken got = device.score(logits, some, top);
    const SampledToken want = reference.score(logits, some, top);
    ASSERT_EQ(got.id, want.id);
    expect_same_logprobs(got, want);
  }
  EXPECT_GT(sampled, rounds);
  EXPECT_GT(errors, rounds / 20);
}

INSTANTIATE_TEST_SUITE_P(Cuda, SampleDevices,
                         ::testing::Values(2, 7, 33, 257, 1000, 4099, 50277, 130001));

}  // namespace recurve::testing::sample_devices_test
