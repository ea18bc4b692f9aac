// A prompt of a million tokens: it takes no more memory than any other, concurrent streams get
// a token in each step, and the rows of a step change nothing. On GPUs, which need a
// second for it.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/engine/engine_harness.h"
#include "tests/support/engine/model_runner.h"

namespace recurve::testing::million_tokens_test {

constexpr size_t kMillion = 1'000'000;

class MillionTokens : public ::testing::TestWithParam<std::string /* under tests/golden */> {
 protected:
  void SetUp() override {
    const std::string why = why_unusable("cuda:0");
    if (!why.empty()) GTEST_SKIP() << why;
    backend_ = make_backend("cuda:0");
    model_ = ModelRunner::load({GetParam(), stored_type(golden_dir() / GetParam())}, *backend_, 0);
  }

  EngineHarness engine(int rows_per_step) const {
    return EngineHarness(*model_, *backend_, {.slots = 2, .rows_per_step = rows_per_step});
  }
  Request request(size_t length, int max_tokens) const {
    Request request{.prompt =
                        some_prompt(length, length, static_cast<int32_t>(model_->info().vocab))};
    request.sampling.temperature = 0;
    request.sampling.max_tokens = max_tokens;
    request.sampling.logprobs = 2;
    return request;
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<const Model> model_;
};

TEST_P(MillionTokens, TakeNoMemoryAndNoStreamsTime) {
  std::vector<TokenBits> bits;
  for (const int rows : {2048, 8192}) {
    EngineHarness harness = engine(rows);
    const AnswerPtr stream = harness.submit(request(5, 1 << 20));
    harness.step(10);
    const size_t allocated = backend_->allocated();
    const AnswerPtr answer = harness.submit(request(kMillion, 20));
    stream->take();
    const size_t tokens_before = stream->tokens.size();
    size_t steps = 0;
    while (!answer->ended() && steps < 2 * kMillion / static_cast<size_t>(rows)) {
      harness.step();
      answer->take();
      ++steps;
    }
    ASSERT_TRUE(answer->ended());
    EXPECT_EQ(answer->tokens.size(), 20u);
    EXPECT_EQ(backend_->allocated(), allocated);
    stream->take();
    // Tokens are delivered while the next step is computed.
    EXPECT_GE(stream->tokens.size() - tokens_before + 2, steps);
    if (bits.empty()) bits = answer->bits();
    EXPECT_EQ(answer->bits(), bits);
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MillionTokens);
#if RECURVE_CUDA
INSTANTIATE_TEST_SUITE_P(Cuda, MillionTokens,
                         ::testing::Values("xlstm/single", "mamba/hf", "mamba2/hf", "gla/gla",
                                           "rwkv7/bf16", "rnn/lstm"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '/', '_');
                           return name;
                         });
#endif

}  // namespace recurve::testing::million_tokens_test
