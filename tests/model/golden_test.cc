// Every family against an independent implementation's logits and final states: the README.md
// of each golden checkpoint names it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "tests/support/engine/model_runner.h"

namespace recurve::testing::golden_test {

using Param = std::tuple<ModelCase, std::string /* device */, int /* rows a step */>;

class GoldenTest : public ::testing::TestWithParam<Param> {};

// fp32 against fp64: the largest difference relative to the largest value.
constexpr double kTolerance = 2e-5;

// What is promised of weights in bf16, with any arithmetic between them.
constexpr double kCosine = 0.9999;

void expect_cosine(const std::vector<float>& got, const std::vector<float>& want) {
  double both = 0, got_squares = 0, want_squares = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    both += static_cast<double>(got[i]) * want[i];
    got_squares += static_cast<double>(got[i]) * got[i];
    want_squares += static_cast<double>(want[i]) * want[i];
  }
  EXPECT_GE(both / std::sqrt(got_squares * want_squares), kCosine);
}

void expect_close(const std::vector<float>& got, const std::vector<float>& want,
                  const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double largest = 0, difference = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_TRUE(std::isfinite(got[i])) << what << " " << i;
    largest = std::max(largest, std::abs(static_cast<double>(want[i])));
    difference = std::max(difference, std::abs(static_cast<double>(got[i]) - want[i]));
  }
  EXPECT_LE(difference, kTolerance * largest) << what << ", largest value " << largest;
}

// Of a model whose states are written once in several rows: not of these, nor of what lies
// rows_held.
bool golden_has_whole(const StateArray& array) {
  return array.written_every == 1 && array.growth != StateGrowth::kRing;
}

TEST_P(GoldenTest, LogitsAndStates) {
  const auto& [model_case, device, step] = GetParam();
  if (const std::string why = why_unusable(model_case, device); !why.empty()) GTEST_SKIP() << why;
  ModelRunner runner(model_case, device);
  const Golden golden(golden_dir() / model_case.directory / "golden.safetensors");
  for (const std::string s : {"0", "1"}) {
    const std::vector<int32_t> tokens = golden.ids("tokens." + s);
    const StateSlot slot = *runner.pool().acquire();
    std::vector<float> logits;
    for (size_t at = 0; at < tokens.size(); at += static_cast<size_t>(step)) {
      const size_t end = std::min(tokens.size(), at + static_cast<size_t>(step));
      const auto part = runner.forward({{&slot,
                                         {tokens.begin() + static_cast<ptrdiff_t>(at),
                                          tokens.begin() + static_cast<ptrdiff_t>(end)}}});
      logits.insert(logits.end(), part.begin(), part.end());
    }
    expect_close(logits, golden.floats("logits." + s), "logits." + s);
    if (model_case.weights == DType::kBF16) expect_cosine(logits, golden.floats("logits." + s));
    std::map<std::string, DType> names;  // of the state's arrays, each of them over all layers
    for (const StateArray& array : runner.pool().layout().arrays) {
      const bool in_parts = model_case.written_every > 1 && !golden_has_whole(array);
      if (!in_parts) names[array.name] = array.dtype;
    }
    for (const auto& [name, dtype] : names) {
      const std::vector<float> state = runner.state(slot, name);
      if (dtype == DType::kI32) {  // the same words, which state() takes for floats
        std::vector<int32_t> counts(state.size());
        std::memcpy(counts.data(), state.data(), state.size() * sizeof(int32_t));
        EXPECT_EQ(counts, golden.ids(name + "." + s)) << name << "." << s;
      } else {
        expect_close(state, golden.floats(name + "." + s), name + "." + s);
      }
    }
  }
}

// Every family is proven with weights in bf16 too.
TEST(GoldenCases, AllFamiliesHaveBf16) {
  std::set<std::string> fp32, bf16;
  for (const ModelCase& model_case : model_cases()) {
    const std::string family = model_case.directory.substr(0, model_case.directory.find('/'));
    (model_case.weights == DType::kBF16 ? bf16 : fp32).insert(family);
  }
  EXPECT_THAT(bf16, ::testing::IsSupersetOf(fp32));
}

std::string name_of_case(const ::testing::TestParamInfo<Param>& info) {
  std::string name = std::get<0>(info.param).directory + "_" + std::get<1>(info.param) + "_" +
                     std::to_string(std::get<2>(info.param));
  for (char& c : name) {
    if (c == '/' || c == ':') c = '_';
  }
  return name;
}

// Steps of one token, a chunk and an odd rest, all at once.
INSTANTIATE_TEST_SUITE_P(Families, GoldenTest,
                         ::testing::Combine(::testing::ValuesIn(model_cases()),
                                            ::testing::ValuesIn(all_devices()),
                                            ::testing::Values(1, 64, 256)),
                         name_of_case);

INSTANTIATE_TEST_SUITE_P(HeldRows, GoldenTest,
                         ::testing::Combine(::testing::ValuesIn(held_model_cases()),
                                            ::testing::ValuesIn(holding_devices()),
                                            ::testing::Values(1, 64)),
                         name_of_case);

}  // namespace recurve::testing::golden_test
