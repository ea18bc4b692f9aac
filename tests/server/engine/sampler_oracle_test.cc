#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "kernels/ops/sample_math.h"
#include "tests/server/engine/oracle.h"
#include "tests/support/kernels/normal_floats.h"
#include "tests/support/kernels/random_values.h"
#include "tests/support/kernels/row_sampler.h"

namespace recurve::sampler_oracle_test {

using testing_support::oracle;
using testing_support::oracle_draw;
using testing_support::oracle_logits;
using testing_support::Outcome;
using testing_support::Seen;
using Sampler = testing::RowSampler;

// Random rows, histories and parameters, by vocabulary size.
class SamplerOracle : public ::testing::TestWithParam<int32_t>, protected testing::RandomValues {
 protected:
  SamplerOracle() : RandomValues(static_cast<uint64_t>(GetParam())) {}
  int32_t usable() const { return GetParam(); }
  int32_t id() { return integer(0, usable() - 1); }

  // Some rows are coarse, so that many logits are equal.
  std::vector<float> row() {
    const bool coarse = coin(0.3);
    const float spread = real(0.1f, 6);
    auto logits = testing::normal_floats(generator_, static_cast<size_t>(usable()) + 5, spread);
    if (coarse) {
      for (float& x : logits) x = std::round(x * 2) / 2;
    }
    return logits;
  }

  void see(TokenHistory* history, Seen* seen) {
    for (int i = integer(0, 50); i > 0; --i) {
      const int32_t token = id();
      if (coin(0.5)) {
        history->add_prompt(token);
        ++seen->prompt[token];
      } else {
        history->add_generated(token);
        ++seen->generated[token];
      }
    }
  }

  SamplingParams params() {
    SamplingParams p;
    p.temperature = coin(0.3) ? 1.0f : real(0.05f, 3);
    if (coin(0.4)) p.top_k = integer(1, coin(0.8) ? std::min(usable(), 60) : usable() + 3);
    if (coin(0.4)) p.top_p = real(0.01f, 1);
    if (coin(0.4)) p.min_p = real(0, 0.5f);
    if (coin(0.4)) p.typical_p = real(0.05f, 1);
    // Quarters and halves keep float and double logits equal, and with them the ties.
    if (coin(0.4)) p.repetition_penalty = coin(0.5) ? 2.0f : 0.5f;
    if (coin(0.4)) p.presence_penalty = 0.25f * static_cast<float>(integer(-8, 8));
    if (coin(0.4)) p.frequency_penalty = 0.25f * static_cast<float>(integer(-8, 8));
    if (coin(0.3)) {
      const int32_t biased = id();
      p.logit_bias.emplace_back(biased, static_cast<float>(integer(-5, 5)));
      if (usable() > 1) p.logit_bias.emplace_back((biased + 1) % usable(), 1.0f);
    }
    if (coin(0.2)) {
      for (int i = integer(1, std::min(usable(), 20)); i > 0; --i) p.allowed_ids.push_back(id());
    }
    if (coin(0.3)) p.min_tokens = 2;
    if (coin(0.3)) p.stop_ids = {id(), id()};
    p.ignore_eos = coin(0.3);
    p.seed = generator_();
    return p;
  }
};

TEST_P(SamplerOracle, DrawsWhatSortingEverythingDraws) {
  const SamplingVocab vocab{
      .rows = usable() + 5, .usable = usable(), .eos_ids = {usable() / 2, usable() - 1}};
  Sampler sampler(vocab);
  int drawn = 0;
  for (int round = 0; round < 400; ++round) {
    const SamplingParams p = params();
    if (check(p, vocab)) continue;
    TokenHistory history;
    Seen seen;
    see(&history, &seen);
    const auto logits = row();
    for (int64_t index = 0; index < 4; ++index) {
      const auto outcomes = oracle(logits, vocab, p, seen, index);
      const int32_t wanted = oracle_draw(outcomes, uniform(p.seed, index));
      ASSERT_EQ(sampler.sample(logits, p, history, index).id, wanted)
          << "round " << round << " index " << index << " temperature " << p.temperature
          << " top_k " << p.top_k << " typical_p " << p.typical_p << " top_p " << p.top_p
          << " min_p " << p.min_p;
      ++drawn;
    }
  }
  EXPECT_GT(drawn, usable() < 3 ? 300 : 1000);
}

TEST_P(SamplerOracle, GreedyTakesTheFirstOfTheGreatest) {
  const SamplingVocab vocab{
      .rows = usable() + 5, .usable = usable(), .eos_ids = {usable() / 2, usable() - 1}};
  Sampler sampler(vocab);
  for (int round = 0; round < 200; ++round) {
    SamplingParams p = params();
    p.temperature = 0;
    if (check(p, vocab)) continue;
    TokenHistory history;
    Seen seen;
    see(&history, &seen);
    const auto logits = row();
    for (int64_t index = 1; index < 3; ++index) {
      const auto z = oracle_logits(logits, vocab, p, seen, index);
      const auto wanted = std::max_element(z.begin(), z.end()) - z.begin();
      ASSERT_EQ(sampler.sample(logits, p, history, index).id, wanted);
    }
  }
}

TEST_P(SamplerOracle, LogprobsAreThoseOfTheRow) {
  const SamplingVocab vocab{.rows = usable() + 5, .usable = usable(), .eos_ids = {}};
  Sampler sampler(vocab);
  SamplingParams raw;  // the model's own distribution
  for (int round = 0; round < 20; ++round) {
    const auto logits = row();
    const std::vector<Outcome> sorted = oracle(logits, vocab, raw, {}, 0);
    SamplingParams p = params();
    if (check(p, vocab)) continue;
    p.logprobs = integer(0, kMaxLogprobs);
    const SampledToken token = sampler.sample(logits, p, {}, 5);
    const auto has_id = [&](const Outcome& o) { return o.id == token.id; };
    const auto found = std::find_if(sorted.begin(), sorted.end(), has_id);
    ASSERT_NE(found, sorted.end());
    // Half a unit in the last place of a float, and what the double sums leave.
    const auto near = [](double wanted) { return std::abs(wanted) * 0x1p-24 + 1e-12; };
    EXPECT_NEAR(token.logprob, std::log(found->p), near(std::log(found->p)));
    ASSERT_EQ(token.top.size(), std::min<size_t>(sorted.size(), static_cast<size_t>(p.logprobs)));
    for (size_t i = 0; i < token.top.size(); ++i) {
      EXPECT_EQ(token.top[i].id, sorted[i].id);
      EXPECT_NEAR(token.top[i].logprob, std::log(sorted[i].p), near(std::log(sorted[i].p)));
    }
    const SampledToken score = sampler.score(logits, token.id, p.logprobs);
    EXPECT_EQ(score.logprob, token.logprob);
    EXPECT_EQ(score.top.size(), token.top.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, SamplerOracle,
                         ::testing::Values(1, 2, 7, 33, 64, 257, 1000, 4099));

// The size that matters for xLSTM-7b, for flat and for peaked rows.
TEST(SamplerOracleLarge, FiftyThousandIds) {
  const SamplingVocab vocab{.rows = 50304, .usable = 50277, .eos_ids = {0, 7}};
  Sampler sampler(vocab);
  std::mt19937_64 generator(5);
  for (const float spread : {0.01f, 1.0f, 5.0f}) {
    const auto logits = testing::normal_floats(generator, 50304, spread);
    for (int option = 0; option < 6; ++option) {
      SamplingParams p;
      p.seed = static_cast<uint64_t>(option);
      if (option == 1) p.top_k = 40;
      if (option == 2) p.top_k = 45000;
      if (option == 3) p.top_p = 0.95f;
      if (option == 4) p.typical_p = 0.9f;
      if (option == 5) p.min_p = 0.02f;
      const auto outcomes = oracle(logits, vocab, p, {}, 0);
      for (int64_t index = 0; index < 3; ++index) {
        ASSERT_EQ(sampler.sample(logits, p, {}, index).id,
                  oracle_draw(outcomes, uniform(p.seed, index)))
            << spread << ' ' << option;
      }
    }
  }
}

}  // namespace recurve::sampler_oracle_test
