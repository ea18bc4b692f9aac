#include "server/sampling/params.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

namespace recurve::params_test {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

const SamplingVocab kVocab{.rows = 104, .usable = 100, .eos_ids = {0}};

using Change = std::function<void(SamplingParams&)>;

std::string problem(const Change& change) {
  SamplingParams params;
  change(params);
  return check(params, kVocab).value_or("");
}

TEST(CheckParams, DefaultsAndBordersAreFine) {
  EXPECT_EQ(check(SamplingParams{}, kVocab), std::nullopt);
  const Change fine[] = {
      [](auto& p) { p.temperature = 0; },
      [](auto& p) { p.temperature = std::numeric_limits<float>::denorm_min(); },
      [](auto& p) { p.temperature = kMaxTemperature; },
      [](auto& p) { p.top_k = std::numeric_limits<int32_t>::max(); },
      [](auto& p) { p.top_p = 1e-30f; },
      [](auto& p) { p.typical_p = 1e-30f; },
      [](auto& p) { p.min_p = 1; },
      [](auto& p) { p.repetition_penalty = kMinRepetitionPenalty; },
      [](auto& p) { p.presence_penalty = -2; },
      [](auto& p) { p.frequency_penalty = 2; },
      [](auto& p) { p.logit_bias = {{99, -1000}, {0, 1000}}; },
      [](auto& p) { p.allowed_ids = {0, 99, 99}; },
      [](auto& p) { p.stop_ids.assign(kMaxStopIds, 99); },
      [](auto& p) { p.max_tokens = 0; },
      [](auto& p) { p.min_tokens = p.max_tokens; },
      [](auto& p) { p.logprobs = p.prompt_logprobs = 0; },
      [](auto& p) { p.logprobs = p.prompt_logprobs = kMaxLogprobs; },
  };
  for (const Change& change : fine) EXPECT_EQ(problem(change), "");
}

TEST(CheckParams, NumbersOutOfRange) {
  EXPECT_EQ(problem([](auto& p) { p.temperature = -0.5f; }),
            "temperature must be in [0, 1000], got -0.5");
  EXPECT_EQ(problem([](auto& p) { p.temperature = kNan; }),
            "temperature must be in [0, 1000], got nan");
  EXPECT_EQ(problem([](auto& p) { p.temperature = kInfinity; }),
            "temperature must be in [0, 1000], got inf");
  EXPECT_EQ(problem([](auto& p) { p.top_k = -1; }), "top_k must be at least 0, got -1");
  EXPECT_EQ(problem([](auto& p) { p.top_p = 0; }), "top_p must be in (0, 1], got 0");
  EXPECT_EQ(problem([](auto& p) { p.top_p = 1.5f; }), "top_p must be in (0, 1], got 1.5");
  EXPECT_EQ(problem([](auto& p) { p.top_p = kNan; }), "top_p must be in (0, 1], got nan");
  EXPECT_EQ(problem([](auto& p) { p.min_p = -0.25f; }), "min_p must be in [0, 1], got -0.25");
  EXPECT_EQ(problem([](auto& p) { p.min_p = kNan; }), "min_p must be in [0, 1], got nan");
  EXPECT_EQ(problem([](auto& p) { p.typical_p = 0; }), "typical_p must be in (0, 1], got 0");
  EXPECT_EQ(problem([](auto& p) { p.repetition_penalty = 0; }),
            "repetition_penalty must be in [0.01, 100], got 0");
  EXPECT_EQ(problem([](auto& p) { p.repetition_penalty = kNan; }),
            "repetition_penalty must be in [0.01, 100], got nan");
  EXPECT_EQ(problem([](auto& p) { p.presence_penalty = 2.5f; }),
            "presence_penalty must be in [-2, 2], got 2.5");
  EXPECT_EQ(problem([](auto& p) { p.frequency_penalty = -kInfinity; }),
            "frequency_penalty must be in [-2, 2], got -inf");
  EXPECT_EQ(problem([](auto& p) { p.logprobs = 101; }), "logprobs must be in [-1, 100], got 101");
  EXPECT_EQ(problem([](auto& p) { p.prompt_logprobs = -2; }),
            "prompt_logprobs must be in [-1, 100], got -2");
  EXPECT_EQ(problem([](auto& p) { p.max_tokens = -1; }), "max_tokens must be at least 0, got -1");
  EXPECT_EQ(problem([](auto& p) { p.min_tokens = -1; }), "min_tokens must be in [0, 256], got -1");
}

TEST(CheckParams, IdsAndBiases) {
  EXPECT_EQ(problem([](auto& p) { p.logit_bias = {{100, 1}}; }),
            "logit_bias must name token ids in [0, 100), got 100");
  EXPECT_EQ(problem([](auto& p) { p.logit_bias = {{-1, 1}}; }),
            "logit_bias must name token ids in [0, 100), got -1");
  EXPECT_EQ(problem([](auto& p) { p.logit_bias = {{7, kNan}}; }),
            "logit_bias of token id 7 must be in [-1000, 1000], got nan");
  EXPECT_EQ(problem([](auto& p) { p.logit_bias = {{7, -kInfinity}}; }),
            "logit_bias of token id 7 must be in [-1000, 1000], got -inf");
  EXPECT_EQ(problem([](auto& p) { p.logit_bias = {{7, 1}, {8, 1}, {7, 2}}; }),
            "logit_bias must name a token id once, got 7 more than once");
  EXPECT_EQ(problem([](auto& p) { p.logit_bias.assign(kMaxLogitBiasEntries + 1, {1, 1}); }),
            "logit_bias must have at most 1024 entries, got 1025");
  EXPECT_EQ(problem([](auto& p) { p.allowed_ids = {1, 103}; }),
            "allowed_token_ids must name token ids in [0, 100), got 103");
  EXPECT_EQ(problem([](auto& p) { p.allowed_ids = {std::numeric_limits<int32_t>::min()}; }),
            "allowed_token_ids must name token ids in [0, 100), got -2147483648");
  EXPECT_EQ(problem([](auto& p) { p.allowed_ids.assign(101, 1); }),
            "allowed_token_ids must have at most 100 entries, got 101");
  EXPECT_EQ(problem([](auto& p) { p.stop_ids = {1, 100}; }),
            "stop_token_ids must name token ids in [0, 100), got 100");
  EXPECT_EQ(problem([](auto& p) { p.stop_ids.assign(kMaxStopIds + 1, 1); }),
            "stop_token_ids must have at most 64 entries, got 65");
}

TEST(CheckParams, Contradictions) {
  EXPECT_EQ(problem([](auto& p) {
              p.max_tokens = 3;
              p.min_tokens = 4;
            }),
            "min_tokens must be in [0, 3], got 4");
  const std::string nothing_left =
      "min_tokens must be 0 where every id that may be sampled ends the answer "
      "(end-of-sequence or stop_token_ids), got 1";
  const Change only_ends = [](auto& p) {
    p.min_tokens = 1;
    p.stop_ids = {5, 6};
    p.allowed_ids = {0, 5, 6};
  };
  EXPECT_EQ(problem(only_ends), nothing_left);
  EXPECT_EQ(problem([&](auto& p) {
              only_ends(p);
              p.ignore_eos = true;
            }),
            "");
  EXPECT_EQ(problem([&](auto& p) {
              only_ends(p);
              p.allowed_ids.push_back(7);
            }),
            "");
  EXPECT_EQ(problem([&](auto& p) {
              only_ends(p);
              p.min_tokens = 0;
            }),
            "");
  SamplingParams params;
  params.min_tokens = 1;
  params.stop_ids = {1, 1};
  EXPECT_EQ(check(params, {.rows = 2, .usable = 2, .eos_ids = {0}}), nothing_left);
  EXPECT_EQ(check(params, {.rows = 3, .usable = 3, .eos_ids = {0}}), std::nullopt);
}

}  // namespace recurve::params_test
