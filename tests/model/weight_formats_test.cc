// Models whose weights are packed: what python -m weights_tools quantize wrote has the bits of
// packing at load, and the logits that numpy computes from the file alone.
#include "kernels/weight_formats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "model/layers/required_ops.h"
#include "tests/support/engine/model_runner.h"
#include "tests/support/golden.h"
#include "tests/support/kernels/packed.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::weight_formats_test {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

struct Case {
  std::string format, family;
  fs::path packed() const { return golden_dir() / "weight_formats" / format / family; }
  fs::path source() const {
    return golden_dir() / family / (family == "xlstm" ? "tied_bf16" : "bf16");
  }
};

std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const auto& format : fs::directory_iterator(golden_dir() / "weight_formats")) {
    if (!format.is_directory()) continue;
    for (const auto& family : fs::directory_iterator(format)) {
      cases.push_back({format.path().filename(), family.path().filename()});
    }
  }
  std::ranges::sort(cases, {}, [](const Case& c) { return c.packed(); });
  return cases;
}

std::vector<int32_t> tokens_of(const Case& c) {
  const fs::path file = c.packed() / "golden.safetensors";
  if (fs::exists(file)) return Golden(file).ids("tokens.0");
  return {1, 5, 9, 2, 5, 5, 80, 3};
}

std::vector<float> logits_of(ModelRunner& runner, const std::vector<int32_t>& tokens, size_t step) {
  const StateSlot slot = *runner.pool().acquire();
  std::vector<float> logits;
  for (size_t at = 0; at < tokens.size(); at += step) {
    const auto begin = tokens.begin() + static_cast<ptrdiff_t>(at);
    const size_t count = std::min(step, tokens.size() - at);
    const auto part = runner.forward({{&slot, {begin, begin + static_cast<ptrdiff_t>(count)}}});
    logits.insert(logits.end(), part.begin(), part.end());
  }
  return logits;
}

using Param = std::tuple<Case, std::string /* device */>;

class PackedModelTest : public ::testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    const auto& [c, device] = GetParam();
    if (const std::string why = why_unusable(device); !why.empty()) GTEST_SKIP() << why;
    try {
      ModelRunner runner(c.source(), DType::kBF16, device);
    } catch (const MissingKernels& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

TEST_P(PackedModelTest, HasTheLogitsOfTheFileAlone) {
  const auto& [c, device] = GetParam();
  const fs::path file = c.packed() / "golden.safetensors";
  if (!fs::exists(file)) return;  // the family has no form in numpy; its bits are compared below
  const Golden golden(file);
  for (const size_t step : {1, 24}) {
    ModelRunner runner(c.packed(), DType::kBF16, device);
    const std::vector<float> want = golden.floats("logits.0");
    const std::vector<float> got = logits_of(runner, golden.ids("tokens.0"), step);
    ASSERT_EQ(got.size(), want.size());
    float largest = 0;
    for (const float value : want) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-5 * largest) << i;
  }
}

TEST_P(PackedModelTest, HasTheBitsOfPackingAtLoad) {
  const auto& [c, device] = GetParam();
  ModelRunner stored(c.packed(), WeightFormats::named("auto"), device);
  ModelRunner packed(c.source(), WeightFormats::named(c.format), device);
  ModelRunner plain(c.source(), DType::kBF16, device);
  EXPECT_EQ(stored.model().info().weight_bytes, packed.model().info().weight_bytes);
  EXPECT_EQ(stored.model().info().parameters, plain.model().info().parameters);
  const std::vector<int32_t> tokens = tokens_of(c);
  const std::vector<float> logits = logits_of(stored, tokens, 64);
  EXPECT_EQ(logits, logits_of(packed, tokens, 64));
  EXPECT_NE(logits, logits_of(plain, tokens, 64));
}

TEST_P(PackedModelTest, HasTheSameBitsWhereTheFileIsUsedInPlace) {
  const auto& [c, device] = GetParam();
  ModelRunner copied(c.packed(), WeightFormats::named("auto"), device);
  ModelRunner mapped(c.packed(), WeightFormats::named("auto"), device, 0, 2, DType::kF32, true);
  EXPECT_EQ(mapped.model().info().weight_bytes, copied.model().info().weight_bytes);
  if (!mapped.backend().computes_on_host()) {
    EXPECT_EQ(mapped.backend().allocated(), copied.backend().allocated());
  } else if (c.family != "qwen3_5_moe" && c.family != "qwen3_next") {  // where none is on its place
    EXPECT_LT(mapped.backend().allocated(), copied.backend().allocated());
  }
  for (const size_t step : {1, 64}) {
    EXPECT_EQ(logits_of(mapped, tokens_of(c), step), logits_of(copied, tokens_of(c), step));
  }
}

// Asked for in another format, a packed file is read back and rounded to that.
TEST_P(PackedModelTest, IsWidenedWhereThatIsAskedFor) {
  const auto& [c, device] = GetParam();
  ModelRunner wide(c.packed(), WeightFormats::named("f32"), device);
  ModelRunner stored(c.packed(), {WeightFormats(DType::kF32)}, device);
  const std::vector<int32_t> tokens = tokens_of(c);
  const std::vector<float> want = logits_of(stored, tokens, 64), got = logits_of(wide, tokens, 64);
  const WeightFormat* format = find_weight_format(c.format);
  // Where nothing is transposed (Matrix::transposed), the same products in the same order.
  const bool transposed = c.family == "rwkv7" || c.family == "nemotron_h";
  if (device == "cpu" && !transposed &&
      multiplies_unpacked(make_backend(device)->kernels(), *format)) {
    EXPECT_EQ(got, want);
  } else {
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-3);
  }
  EXPECT_GT(wide.model().info().weight_bytes, stored.model().info().weight_bytes);
}

std::string name_of_case(const ::testing::TestParamInfo<Param>& info) {
  const auto& [c, device] = info.param;
  return c.format + "_" + c.family + "_" + test_name(device);
}

INSTANTIATE_TEST_SUITE_P(Families, PackedModelTest,
                         ::testing::Combine(::testing::ValuesIn(cases()),
                                            ::testing::ValuesIn(all_devices())),
                         name_of_case);

TEST(WeightFormatsOfModels, EveryFamilyHasACase) {
  std::set<std::string> families;
  for (const Case& c : cases()) families.insert(c.family);
  for (const ModelCase& model_case : model_cases()) {
    EXPECT_TRUE(families.contains(model_case.directory.substr(0, model_case.directory.find('/'))))
        << model_case.directory;
  }
}

// Matrices of other ops are not packed, and not rounded to bf16 either.
class OtherMatrices : public ::testing::TestWithParam<std::tuple<const char*, std::string>> {};

TEST_P(OtherMatrices, StayAsTheyAreStoredWhereLinearLayersArePacked) {
  const auto& [directory, device] = GetParam();
  if (const std::string why = why_unusable(device); !why.empty()) GTEST_SKIP() << why;
  for (const char* format : {"int8", "int4"}) {
    WeightFormats rounding = WeightFormats::named(format);
    rounding.others = DType::kBF16;
    ModelRunner stored(golden_dir() / directory, WeightFormats::named(format), device);
    ModelRunner rounded(golden_dir() / directory, rounding, device);
    EXPECT_GT(stored.model().info().weight_bytes, rounded.model().info().weight_bytes);
    const std::vector<int32_t> tokens = {1, 5, 2, 3, 0, 4};
    EXPECT_NE(logits_of(stored, tokens, 64), logits_of(rounded, tokens, 64));
  }
  ModelRunner plain(golden_dir() / directory, WeightFormats::named("auto"), device);
  ModelRunner narrow(golden_dir() / directory, WeightFormats::named("bf16"), device);
  EXPECT_EQ(plain.model().info().weight_bytes, narrow.model().info().weight_bytes);
}

INSTANTIATE_TEST_SUITE_P(
    Families, OtherMatrices,
    ::testing::Combine(::testing::Values("mamba/hf", "gla/gla", "gla/linear_attn_hedgehog",
                                         "rwkv7/heads", "rnn/lstm_heads", "xlstm_blocks/vanilla",
                                         "recurrent_gemma/pattern"),
                       ::testing::ValuesIn(all_devices())),
    [](const auto& info) {
      std::string name = std::get<0>(info.param);
      std::ranges::replace(name, '/', '_');
      return name + "_" + test_name(std::get<1>(info.param));
    });

TEST(WeightFormatsOfModels, TheHeadMayHaveAFormatOfItsOwn) {
  const auto backend = make_backend("reference");
  for (const auto& [linear, head, wanted] : {std::tuple{"int4", "", "int4"},
                                             {"int4", "int8", "int4, int8"},
                                             {"bf16", "", "bf16"},
                                             {"bf16", "int8", "bf16, int8"},
                                             {"f32", "f32", "f32"}}) {
    Checkpoint checkpoint = Checkpoint::open(golden_dir() / "xlstm/tied_bf16");
    load_model(checkpoint, *backend, {.weights = WeightFormats::named(linear, head)});
    EXPECT_EQ(checkpoint.weight_formats(), wanted);
  }
}

TEST(WeightFormatsOfModels, AFormatThatIsUnknownIsRefusedByName) {
  try {
    WeightFormats::named("int3");
    ADD_FAILURE() << "int3 was taken";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("auto, f32, bf16, int8, int4, found \"int3\""));
  }
}

// One matrix "W" of (2, 70) in int8: rows of 128 bytes and two scales.
class PackedTensors : public ::testing::Test {
 protected:
  PackedTensors() { write_file(dir_ / "config.json", "{}"); }
  std::string refusal(const SafetensorsWriter& writer) {
    writer.write(dir_ / "model.safetensors");
    Checkpoint checkpoint = Checkpoint::open(dir_.path());
    try {
      const LinearWeights weights = LinearWeights::load(*backend_, checkpoint, {{"W", 2}}, 70,
                                                        WeightChoice{&kBf16Weights, true});
      checkpoint.finish();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  }
  static SafetensorsWriter whole(int64_t row = 128, int64_t scales = 2) {
    return SafetensorsWriter()
        .add("W.int8", "I8", {2, row}, std::string(static_cast<size_t>(2 * row), 1))
        .add_bf16("W.int8.scales", {2, scales},
                  std::vector<uint16_t>(static_cast<size_t>(2 * scales), 0x3f80));
  }
  const TempDir dir_;
  const std::unique_ptr<Backend> backend_ = make_backend("reference");
};

TEST_F(PackedTensors, AreTakenWhole) { EXPECT_EQ(refusal(whole()), ""); }

TEST_F(PackedTensors, OfTheWrongSizeAreRefused) {
  EXPECT_THAT(refusal(whole(70, 2)), HasSubstr("\"W.int8\": wanted 2 rows of 128 bytes"));
  EXPECT_THAT(refusal(whole(128, 3)), HasSubstr("\"W.int8.scales\": wanted 2 rows of 4 bytes"));
  EXPECT_THAT(refusal(SafetensorsWriter().add("W.int8", "I8", {2, 128}, std::string(256, 1))),
              HasSubstr("\"W.int8.scales\": wanted 2 rows of 4 bytes, found none"));
}

// Where a matrix is there twice, one of the two is more than the model has.
TEST_F(PackedTensors, NextToThePlainOneAreRefused) {
  SafetensorsWriter both = whole();
  both.add_f32("W", {2, 70}, std::vector<float>(140));
  EXPECT_THAT(refusal(both), HasSubstr("\"W.int8\": wanted none of that name"));
}

}  // namespace recurve::testing::weight_formats_test
