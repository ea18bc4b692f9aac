// Requests with adapters in one engine: each has the answer that it has alone, to the bit.
#include <gtest/gtest.h>

#include "tests/support/adapter_writer.h"
#include "tests/support/engine/engine_harness.h"
#include "tests/support/engine/model_runner.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::adapters_test {

using Param = std::tuple<std::string /* model */, std::string /* device */>;

class EngineAdapters : public ::testing::TestWithParam<Param> {
 protected:
  static ModelCase model_case() {
    const std::string& name = std::get<0>(GetParam());
    return {name, stored_type(golden_dir() / name)};
  }
  static LoadedModel& loaded() { return loaded_model(model_case(), std::get<1>(GetParam())); }

  void SetUp() override {
    const std::string why = why_unusable(model_case(), std::get<1>(GetParam()));
    if (!why.empty()) GTEST_SKIP() << why;
    for (const int64_t r : {3, 16}) {
      const auto folder = folder_ / std::to_string(r);
      AdapterWriter::of_all(*loaded().targets, r, static_cast<uint64_t>(r), r == 16).write(folder);
      adapters_.push_back(load_adapter(*loaded().targets, *loaded().backend, "a", folder));
    }
    adapters_.push_back(nullptr);
  }

  static EngineHarness engine(int slots, bool adapters = true) {
    return EngineHarness(*loaded().model, *loaded().backend,
                         {.slots = slots,
                          .rows_per_step = slots > 1 ? 200 : 0,
                          .launch_ahead = std::get<1>(GetParam()) != "cpu",
                          .adapters = adapters ? loaded().targets : nullptr});
  }
  Request request(size_t number) const {
    constexpr size_t kLengths[] = {1, 130, 64, 3, 65, 150, 2, 70};
    Request request;
    request.prompt = some_prompt(kLengths[number % 8], number,
                                 static_cast<int32_t>(loaded().model->info().vocab));
    request.sampling.temperature = number % 2 ? 0.9f : 0.0f;
    request.sampling.seed = number;
    request.sampling.max_tokens = 6;
    request.sampling.logprobs = 2;
    request.adapter = adapters_[number % adapters_.size()];
    return request;
  }

  TempDir folder_;
  std::vector<AdapterPtr> adapters_;
};

TEST_P(EngineAdapters, AnswersAreThoseOfEachAlone) {
  constexpr size_t kRequests = 10;
  std::vector<std::vector<TokenBits>> wanted;
  for (size_t i = 0; i < kRequests; ++i) {
    const bool has_one = request(i).adapter != nullptr;
    wanted.push_back(engine(1, has_one).ask(request(i))->bits());
  }
  EngineHarness harness = engine(6);
  std::vector<AnswerPtr> answers;
  for (size_t i = 0; i < kRequests; ++i) {
    answers.push_back(harness.submit(request(i)));
    if (i % 3 == 2) harness.step();
  }
  harness.run_until_idle();
  for (size_t i = 0; i < kRequests; ++i) {
    answers[i]->take();
    EXPECT_EQ(answers[i]->bits(), wanted[i]) << i;
  }
}

TEST_P(EngineAdapters, ChangeTheAnswer) {
  Request with_one = request(1), base = with_one;
  base.adapter = nullptr;
  EXPECT_NE(engine(1).ask(with_one)->bits(), engine(1).ask(base)->bits());
}

// The choices of a request have its adapter too.
TEST_P(EngineAdapters, ChoicesHaveTheAdapterOfTheirRequest) {
  EngineHarness harness = engine(4);
  Request several = request(1);
  several.sampling.temperature = 0;
  const auto wanted = engine(1).ask(several)->bits();
  const std::vector<AnswerPtr> answers = harness.submit(several, 2);
  harness.run_until_idle();
  for (const AnswerPtr& answer : answers) {
    answer->take();
    EXPECT_EQ(answer->bits(), wanted);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, EngineAdapters,
                         ::testing::Combine(::testing::Values("mamba/hf", "qwen3_5/pattern"),
                                            ::testing::ValuesIn(all_devices())),
                         [](const auto& info) {
                           std::string name =
                               std::get<0>(info.param) + "_" + test_name(std::get<1>(info.param));
                           std::ranges::replace(name, '/', '_');
                           return name;
                         });

}  // namespace recurve::testing::adapters_test
