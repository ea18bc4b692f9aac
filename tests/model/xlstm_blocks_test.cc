// How the configs of the research xLSTM are read, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/weights/json_file.h"
#include "tests/support/engine/tiny_model.h"

namespace recurve::testing::xlstm_blocks_test {

using nlohmann::json;
using ::testing::HasSubstr;

json golden_config() { return read_json_file(golden_dir() / "xlstm_blocks/cuda/config.json", 1e6); }

std::unique_ptr<const Model> load(const json& config) {
  static const std::unique_ptr<Backend> backend = make_backend("reference");
  Checkpoint checkpoint = Checkpoint::random(config, 1, "d/config.json");
  return load_model(checkpoint, *backend, {});
}

// With the value at a path such as "/mlstm_block/mlstm/num_heads".
json with(const char* path, const json& value) {
  json config = golden_config();
  config[json::json_pointer(path)] = value;
  return config;
}
std::string error_for(const char* path, const json& value) {
  return error_of([&] { load(with(path, value)); });
}

TEST(XlstmBlocksConfig, BlocksStandWhereTheConfigSays) {
  const auto kinds = [](const json& config) {
    std::string text;
    for (const StateArray& array : load(config)->state_layout().arrays) {
      if (array.name == "C") text += 'm';
      if (array.name == "h") text += 's';
    }
    return text;
  };
  EXPECT_EQ(kinds(golden_config()), "msm");
  EXPECT_EQ(kinds(with("/slstm_at", json::array())), "mmm");
  EXPECT_EQ(kinds(with("/slstm_at", {2, 0})), "sms");
  EXPECT_EQ(kinds(with("/slstm_at", "all")), "sss");
  EXPECT_EQ(kinds(with("/mlstm_block", nullptr)), "sss");
}

TEST(XlstmBlocksConfig, SizesAreRoundedUp) {
  const auto inner = [](double factor) {
    return load(with("/mlstm_block/mlstm/proj_factor", factor))->state_layout().arrays[0].shape;
  };
  EXPECT_EQ(inner(2), (std::vector<int64_t>{2, 32, 32}));
  EXPECT_EQ(inner(2.01), (std::vector<int64_t>{2, 64, 64}));
}

TEST(XlstmBlocksConfig, WithoutConvolutionsThereIsNoStateOfThem) {
  json config = with("/mlstm_block/mlstm/conv1d_kernel_size", 0);
  config["slstm_block"]["slstm"]["conv1d_kernel_size"] = 0;
  EXPECT_EQ(load(config)->state_layout().arrays.size(), 3u + 4 + 3);
}

TEST(XlstmBlocksConfig, RefusesWhatWouldChangeTheMaths) {
  EXPECT_EQ(error_for("/bias", true), "");
  EXPECT_THAT(error_for("/mlstm_block/mlstm/bias", true),
              HasSubstr("mlstm_block.mlstm: bias: wanted false"));
  EXPECT_THAT(error_for("/_block_map", "0,0,1"), HasSubstr("_block_map: wanted \"0,1,0\""));
  EXPECT_THAT(error_for("/some_key", 1), HasSubstr("some_key"));
  EXPECT_THAT(error_for("/slstm_at", {3}), HasSubstr("slstm_at: wanted numbers of blocks below 3"));
  EXPECT_THAT(error_for("/slstm_at", {-1}), HasSubstr("slstm_at"));
  EXPECT_THAT(error_for("/slstm_at", "some"), HasSubstr("slstm_at"));
  EXPECT_THAT(error_for("/mlstm_block/mlstm/num_heads", 3), HasSubstr("num_heads"));
  EXPECT_THAT(error_for("/mlstm_block/mlstm/gate_mode", "ternary"), HasSubstr("gate_mode"));
  EXPECT_THAT(error_for("/mlstm_block/mlstm/some_key", 1), HasSubstr("mlstm_block.mlstm"));
  EXPECT_THAT(error_for("/slstm_block/slstm/function", "lstm"), HasSubstr("function"));
  EXPECT_THAT(error_for("/slstm_block/slstm/backend", "triton"), HasSubstr("backend"));
  EXPECT_THAT(error_for("/slstm_block/slstm/num_heads", 5), HasSubstr("num_heads"));
  EXPECT_THAT(error_for("/slstm_block/feedforward/act_fn", "selu"), HasSubstr("act_fn"));
}

// Weights that the loader puts in order itself are reported like all others.
TEST(MissingWeights, AreNamed) {
  for (const char* directory : {"xlstm_blocks/cuda", "xlstm_blocks/vanilla", "gla/simple_gla",
                                "gla/hgrn2", "rnn/lstm_heads"}) {
    TinyCheckpoint checkpoint(read_json_file(golden_dir() / directory / "config.json", 1e6));
    checkpoint.add("unknown", {1}, 1);
    const ModelCase model_case{checkpoint.write(), DType::kF32};
    const std::unique_ptr<Backend> backend = make_backend("reference");
    EXPECT_THAT(error_of([&] { ModelRunner::load(model_case, *backend, 0); }), HasSubstr("missing"))
        << directory;
  }
}

}  // namespace recurve::testing::xlstm_blocks_test
