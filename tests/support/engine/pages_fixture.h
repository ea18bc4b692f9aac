#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/engine/engine_harness.h"
#include "tests/support/engine/model_runner.h"

namespace recurve::testing {

// Engines of models whose states grow, with few pages: on every device, with steps that are
// launched ahead and without.
using PagesParam = std::tuple<std::string /* checkpoint */, std::string /* device */, bool>;

class PagesTest : public ::testing::TestWithParam<PagesParam> {
 protected:
  static LoadedModel& loaded() { return loaded_model(model_case(), std::get<1>(GetParam())); }
  static ModelCase model_case() { return {std::get<0>(GetParam()), DType::kF32}; }
  static const Model& model() { return *loaded().model; }
  static int32_t vocab() { return static_cast<int32_t>(model().info().vocab); }

  void SetUp() override {
    const std::string why = why_unusable(model_case(), std::get<1>(GetParam()));
    if (!why.empty()) GTEST_SKIP() << why;
  }

  static HarnessOptions options(int slots, int32_t pages) {
    return {.slots = slots,
            .pages = {.pages = pages, .most_tokens = pages * kPageTokens},
            .launch_ahead = std::get<2>(GetParam())};
  }
  static EngineHarness engine(const HarnessOptions& options) {
    return EngineHarness(model(), *loaded().backend, options);
  }
  // Number `seed` of the requests, greedy and drawn ones in turn, some with penalties.
  static Request request(size_t length, int max_tokens, uint64_t seed,
                         const std::string& session = "") {
    Request request{.session = session};
    request.prompt = some_prompt(length, seed, vocab());
    request.sampling.temperature = seed % 2 ? 0.9f : 0.0f;
    request.sampling.repetition_penalty = seed % 3 ? 1.0f : 1.2f;
    request.sampling.frequency_penalty = seed % 5 ? 0.0f : 0.3f;
    request.sampling.seed = 1000 + seed;
    request.sampling.max_tokens = max_tokens;
    request.sampling.logprobs = 1;
    return request;
  }
  static std::vector<TokenBits> alone(const Request& request, const std::string& session = "") {
    EngineHarness quiet = engine(options(1, 64));
    if (!session.empty()) quiet.open(session);
    return quiet.ask(request)->bits();
  }
};

inline auto all_pages_params() {
  return ::testing::Combine(::testing::Values("qwen3_5/pattern", "granite_hybrid/pattern",
                                              "nemotron_h/groups", "falcon_h1/pattern"),
                            ::testing::ValuesIn(all_devices()), ::testing::Bool());
}

inline std::string pages_param_name(const ::testing::TestParamInfo<PagesParam>& info) {
  std::string name = std::get<0>(info.param) + "_" + test_name(std::get<1>(info.param)) +
                     (std::get<2>(info.param) ? "_ahead" : "");
  std::ranges::replace(name, '/', '_');
  return name;
}

}  // namespace recurve::testing
