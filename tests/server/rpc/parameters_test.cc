// Parameters of a request that reach the engine, and the metrics of its progress.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "tests/support/rpc_fixture.h"

namespace recurve::parameters_test {

class ParametersTest : public RpcFixture {
 protected:
  // A value in Prometheus' text; -1: the series is missing.
  int count(const std::string& series) const {
    const std::string text = metrics_.text();
    const size_t at = text.find("\n" + series + " ");
    return at == std::string::npos ? -1 : std::stoi(text.substr(at + series.size() + 2));
  }
};

TEST_F(ParametersTest, ReachTheEngine) {
  start();
  v1::GenerateRequest request = text_request("x");
  auto& s = *request.mutable_sampling();
  s.set_temperature(0.5f);
  s.set_top_k(3);
  s.set_top_p(0.75f);
  s.set_min_p(0.125f);
  s.set_typical_p(0.25f);
  s.set_repetition_penalty(1.5f);
  s.set_presence_penalty(-1);
  s.set_frequency_penalty(2);
  (*s.mutable_logit_bias())[5] = -3;
  s.add_allowed_token_ids(FakeTokenizer::kEos);
  s.add_allowed_token_ids('x');
  s.set_seed(99);
  auto& stop = *request.mutable_stop();
  stop.set_max_tokens(9);
  stop.set_min_tokens(2);
  stop.set_ignore_eos(true);
  stop.add_stop_token_ids('y');
  request.set_logprobs(0);
  request.set_prompt_logprobs(4);
  request.set_report_progress(true);
  request.set_request_id("r.1");
  ASSERT_TRUE(generate(request).status.ok());
  EXPECT_EQ(engine_->last_request().id, "r.1");
  EXPECT_TRUE(engine_->last_request().report_progress);
  const SamplingParams p = engine_->last_request().sampling;
  EXPECT_EQ(p.temperature, 0.5f);
  EXPECT_EQ(p.top_k, 3);
  EXPECT_EQ(p.top_p, 0.75f);
  EXPECT_EQ(p.min_p, 0.125f);
  EXPECT_EQ(p.typical_p, 0.25f);
  EXPECT_EQ(p.repetition_penalty, 1.5f);
  EXPECT_EQ(p.presence_penalty, -1);
  EXPECT_EQ(p.frequency_penalty, 2);
  EXPECT_EQ(p.logit_bias, (std::vector<std::pair<int32_t, float>>{{5, -3.0f}}));
  EXPECT_EQ(p.allowed_ids, (std::vector<int32_t>{FakeTokenizer::kEos, 'x'}));
  EXPECT_EQ(p.seed, 99u);
  EXPECT_EQ(p.max_tokens, 9);
  EXPECT_EQ(p.min_tokens, 2);
  EXPECT_TRUE(p.ignore_eos);
  EXPECT_EQ(p.stop_ids, (std::vector<int32_t>{'y'}));
  EXPECT_EQ(p.logprobs, 0);
  EXPECT_EQ(p.prompt_logprobs, 4);
}

TEST_F(ParametersTest, DefaultsAreThoseOfTheProtocol) {
  start();
  ASSERT_TRUE(generate(text_request("x")).status.ok());
  EXPECT_EQ(engine_->last_request().deadline, std::nullopt);
  EXPECT_FALSE(engine_->last_request().id.empty());
  const SamplingParams p = engine_->last_request().sampling;
  EXPECT_EQ(p.temperature, 1.0f);
  EXPECT_EQ(p.top_k, 0);
  EXPECT_EQ(p.top_p, 1.0f);
  EXPECT_EQ(p.min_p, 0.0f);
  EXPECT_EQ(p.typical_p, 1.0f);
  EXPECT_EQ(p.repetition_penalty, 1.0f);
  EXPECT_EQ(p.max_tokens, 256);
  EXPECT_EQ(p.logprobs, -1);
  EXPECT_EQ(p.prompt_logprobs, -1);
}

TEST_F(ParametersTest, DefaultOfMaxTokensIsCappedByTheServersLimit) {
  start({}, {.core = {.max_generated_tokens = 10}});
  ASSERT_TRUE(generate(text_request("x")).status.ok());
  EXPECT_EQ(engine_->last_request().sampling.max_tokens, 10);
}

TEST_F(ParametersTest, NothingIsGeneratedIfMaxTokensIsZero) {
  start();
  v1::GenerateRequest request = text_request("x");
  request.mutable_stop()->set_max_tokens(0);
  const Generated got = generate(request);
  ASSERT_TRUE(got.status.ok());
  EXPECT_EQ(got.messages.size(), 2u);
  EXPECT_EQ(got.final().choices(0).reason(), v1::FINISH_REASON_LENGTH);
}

TEST_F(ParametersTest, TwoRequestsInterleaveAndDoNotMix) {
  start({.step = std::chrono::microseconds(100)});
  std::string a, b;
  for (int i = 0; i < 200; ++i) a += "a", b += "bé";
  std::atomic<int> good{0};
  const auto ask = [&](const std::string& text) {
    v1::GenerateRequest request = text_request(text);
    request.mutable_stop()->set_max_tokens(100'000);
    for (int i = 0; i < 3; ++i) good += generate(request).text() == text;
  };
  std::thread first([&] { ask(a); }), second([&] { ask(b); });
  first.join();
  second.join();
  EXPECT_EQ(good, 6);
}

TEST_F(ParametersTest, RequestsAndTheirEndsAreCounted) {
  start();
  ASSERT_TRUE(generate(text_request("four")).status.ok());
  ASSERT_FALSE(generate(text_request("")).status.ok());
  EXPECT_EQ(count("recurve_requests_total"), 2);
  EXPECT_EQ(count("recurve_requests_finished_total{reason=\"eos\"}"), 1);
  EXPECT_EQ(count("recurve_errors_total{code=\"INVALID_ARGUMENT\"}"), 1);
  EXPECT_EQ(count("recurve_time_to_first_token_seconds_count"), 1);
  // Four intervals between the answer's five tokens, in one message or several.
  EXPECT_LE(count("recurve_inter_token_seconds_count"), 4);
}

}  // namespace recurve::parameters_test
