// States that are matrices kept in bf16: which arrays that are, and how far the logits move.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/support/engine/model_runner.h"
#include "tests/support/kernels/compare.h"

namespace recurve::testing::bf16_state_test {

using ::testing::HasSubstr;

struct Bf16Case {
  const char* directory;  // under tests/golden
  const char* matrix;     // the name of the array

  ModelCase model() const { return {directory, DType::kF32}; }
};

class Bf16StateTest : public ::testing::TestWithParam<Bf16Case> {};

constexpr int kTokens = 40;

// Logits of every token, decoded one after the other behind a prompt of ten.
std::vector<float> logits_of(DType state) {
  ModelRunner runner(Bf16StateTest::GetParam().model(), "cpu", 4, 2, state);
  const StateSlot slot = *runner.pool().acquire();
  std::vector<float> all;
  for (int32_t t = 0; t < kTokens;) {
    std::vector<int32_t> tokens;
    for (const int32_t end = t == 0 ? 10 : t + 1; t < end; ++t) tokens.push_back((7 * t + 3) % 32);
    const std::vector<float> logits = runner.forward({{&slot, tokens}});
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

TEST_P(Bf16StateTest, HalvesTheMatricesAndNothingElse) {
  ModelRunner plain(GetParam().model(), "reference");
  ModelRunner halved(GetParam().model(), "reference", 0, 1, DType::kBF16);
  const auto& wanted = plain.pool().layout().arrays;
  const auto& found = halved.pool().layout().arrays;
  ASSERT_EQ(found.size(), wanted.size());
  std::set<std::string> in_bf16;
  for (size_t a = 0; a < found.size(); ++a) {
    EXPECT_EQ(found[a].name, wanted[a].name);
    EXPECT_EQ(found[a].shape, wanted[a].shape);
    if (found[a].dtype != DType::kBF16) continue;
    EXPECT_EQ(2 * found[a].bytes(), wanted[a].bytes());
    in_bf16.insert(found[a].name);
  }
  EXPECT_EQ(in_bf16, std::set<std::string>{GetParam().matrix});
}

// Each of 31 roundings moves a value of the state by at most 2^-9 of itself, and all fade: the
// logits turn by a few times that at most.
TEST_P(Bf16StateTest, LogitsMoveALittle) {
  if (!why_unusable("cpu").empty()) GTEST_SKIP();
  const std::vector<float> exact = logits_of(DType::kF32), found = logits_of(DType::kBF16);
  EXPECT_FALSE(bit_equal(found, exact));
  EXPECT_LT(detail::angle_between(found, exact), 5e-4);
}

constexpr Bf16Case kCases[] = {{"xlstm/single", "C"},
                               {"xlstm/siging", "C"},
                               {"mamba/hf", "h"},
                               {"mamba2/hf", "h"},
                               {"gla/linear_attn_normalised", "S"},
                               {"gla/retnet", "S"},
                               {"xlstm_blocks/vanilla", "C"},
                               {"rwkv7/one_head", "S"},
                               {"delta_net/gated_groups", "S"}};

INSTANTIATE_TEST_SUITE_P(Families, Bf16StateTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) {
                           std::string name = info.param.directory;
                           std::ranges::replace(name, '/', '_');
                           return name;
                         });

// States that are written once in several tokens: refused where they cannot be.
std::string refusal_of(const char* directory, int written_every) {
  try {
    ModelRunner runner({directory, DType::kF32, written_every}, "reference");
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

TEST(WrittenEveryTest, IsRefusedWhereItCannotBe) {
  EXPECT_EQ(refusal_of("mamba2/hf", 8), "");
  EXPECT_THAT(refusal_of("mamba2/hf", 9), HasSubstr("once in 1 to 8 tokens, not in 9"));
  EXPECT_THAT(refusal_of("xlstm/single", 4), HasSubstr("are written in each token"));
  if (!why_unusable("cpu").empty()) GTEST_SKIP();
  EXPECT_THROW(ModelRunner({"mamba2/hf", DType::kF32, 4}, "cpu"), MissingKernels);
}

TEST(Bf16StateRefusalTest, OfAModelWithoutMatrices) {
  try {
    ModelRunner runner({"rnn/lstm", DType::kF32}, "reference", 0, 1, DType::kBF16);
    ADD_FAILURE() << "was not refused";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("are vectors, which are stored in fp32"));
  }
}

}  // namespace recurve::testing::bf16_state_test
