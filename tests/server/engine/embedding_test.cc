// Embeddings: those of transformers for every family, and the same bits whatever runs concurrently
// and however prompts are cut.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/engine/engine_harness.h"
#include "tests/support/engine/model_runner.h"

namespace recurve::testing::embedding_test {

constexpr double kTolerance = 2e-5;  // as that of logits, see golden_test.cc

Request embed(std::vector<int32_t> ids, Pooling pooling) {
  Request request{.prompt = std::move(ids), .pooling = pooling, .prefix = PrefixMode::kOff};
  request.sampling.max_tokens = 0;
  return request;
}

std::vector<float> embedding_of(Answer& answer) {
  EXPECT_EQ(answer.reason(), EndReason::kLength);
  return answer.ending ? answer.ending->embedding : std::vector<float>();
}

std::vector<float> of_length_1(std::vector<float> values) {
  double squares = 0;
  for (const float v : values) squares += static_cast<double>(v) * static_cast<double>(v);
  for (float& v : values) v = static_cast<float>(static_cast<double>(v) / std::sqrt(squares));
  return values;
}

void expect_close(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 0, difference = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(want[i])));
    difference =
        std::max(difference, std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i])));
  }
  EXPECT_LE(difference, kTolerance * largest);
}

using Param = std::tuple<ModelCase, std::string /* device */>;
class EmbeddingTest : public ::testing::TestWithParam<Param> {};

// Of two prompts at once, with steps of one chunk and of many rows, among answers to others.
TEST_P(EmbeddingTest, EqualsTheGoldenHiddenState) {
  const auto& [model_case, device] = GetParam();
  if (const std::string why = why_unusable(model_case, device); !why.empty()) GTEST_SKIP() << why;
  const LoadedModel& loaded = loaded_model(model_case, device);
  const Golden golden(golden_dir() / model_case.directory / "golden.safetensors");
  const Golden hidden(golden_dir() / model_case.directory / "hidden.safetensors");
  for (const Pooling pooling : {Pooling::kLast, Pooling::kMean}) {
    const std::string name = pooling == Pooling::kLast ? "last." : "mean.";
    std::vector<std::vector<float>> first;
    for (const int rows : {0, 256}) {
      EngineHarness engine(*loaded.model, *loaded.backend,
                           {.slots = 3, .rows_per_step = rows, .launch_ahead = rows > 0});
      Request other{.prompt = golden.ids("tokens.1")};
      other.sampling.max_tokens = 20;
      AnswerPtr neighbour;
      if (rows > 0) neighbour = engine.submit(std::move(other));
      std::vector<AnswerPtr> answers;
      for (const std::string s : {"0", "1"}) {
        answers.push_back(engine.submit(embed(golden.ids("tokens." + s), pooling)));
      }
      engine.run_until_idle();
      for (size_t s = 0; s < answers.size(); ++s) {
        answers[s]->take();
        const std::vector<float> got = embedding_of(*answers[s]);
        expect_close(of_length_1(got), hidden.floats(name + std::to_string(s)));
        if (rows == 0) first.push_back(got);
        EXPECT_EQ(got, first[s]) << "the bits depend on steps and neighbours";
      }
    }
  }
}

std::string name_of_case(const ::testing::TestParamInfo<Param>& info) {
  std::string name = std::get<0>(info.param).directory + "_" + std::get<1>(info.param);
  for (char& c : name) {
    if (c == '/' || c == ':') c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Families, EmbeddingTest,
                         ::testing::Combine(::testing::ValuesIn(model_cases()),
                                            ::testing::ValuesIn(all_devices())),
                         name_of_case);

}  // namespace recurve::testing::embedding_test
