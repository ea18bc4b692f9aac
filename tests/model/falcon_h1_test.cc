// Falcon-H1: what of a config is refused and how, and where its multipliers go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/weights/json_file.h"
#include "tests/support/load_on_paper.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::falcon_h1_test {

using nlohmann::json;
using ::testing::HasSubstr;

json config_with(const json& more) {
  json config = {{"model_type", "falcon_h1"}, {"hidden_size", 48}, {"num_hidden_layers", 2},
                 {"intermediate_size", 40},   {"vocab_size", 16},  {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},  {"mamba_d_ssm", 80}, {"mamba_n_heads", 5},
                 {"mamba_d_state", 16}};
  config.update(more);
  return config;
}

std::string error_for(const json& more) {
  return error_of([&] { load_on_paper(config_with(more)); });
}

TEST(FalconH1Config, RefusesWhatWouldChangeTheMaths) {
  EXPECT_EQ(error_for(json::object()), "");
  EXPECT_EQ(error_for({{"mamba_d_head", "auto"}, {"rope_scaling", nullptr}}), "");
  EXPECT_EQ(error_for({{"mamba_d_head", 16}, {"head_dim", 64}}), "");
  EXPECT_THAT(error_for({{"mamba_d_head", 17}}), HasSubstr("mamba_d_head"));
  EXPECT_THAT(error_for({{"mamba_n_heads", 7}}), HasSubstr("a divisor of the inner width 80"));
  EXPECT_THAT(error_for({{"mamba_n_groups", 4}}), HasSubstr("a divisor of mamba_n_heads 5"));
  EXPECT_THAT(error_for({{"num_attention_heads", 5}}), HasSubstr("a divisor of hidden_size 48"));
  EXPECT_THAT(error_for({{"num_key_value_heads", 3}}), HasSubstr("num_key_value_heads"));
  EXPECT_THAT(error_for({{"mamba_rms_norm", true}}),
              HasSubstr("mamba_norm_before_gate: wanted false where mamba_rms_norm is true"));
  EXPECT_EQ(error_for({{"mamba_rms_norm", true}, {"mamba_norm_before_gate", false}}), "");
  for (const char* key : {"attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias"}) {
    EXPECT_EQ(error_for({{key, false}}), "");
    EXPECT_THAT(error_for({{key, true}}), HasSubstr(key));
  }
  EXPECT_THAT(error_for({{"hidden_act", "gelu"}}), HasSubstr("hidden_act"));
  EXPECT_THAT(error_for({{"mamba_use_mlp", false}}), HasSubstr("mamba_use_mlp"));
  EXPECT_THAT(error_for({{"attn_layer_indices", {1}}}), HasSubstr("attn_layer_indices"));
  EXPECT_EQ(error_for({{"layers_block_type", {"hybrid", "hybrid"}}}), "");
  EXPECT_THAT(error_for({{"layers_block_type", {"hybrid", "mamba"}}}),
              HasSubstr("layers_block_type: wanted \"hybrid\" for each of 2 layers"));
  EXPECT_THAT(error_for({{"rope_scaling", {{"rope_type", "yarn"}}}}), HasSubstr("rope_scaling"));
  EXPECT_THAT(error_for({{"time_step_limit", {1, 0}}}), HasSubstr("time_step_limit"));
  EXPECT_THAT(error_for({{"some_new_key", 1}}), HasSubstr("some_new_key"));
}

TEST(FalconH1Config, RefusesMultipliersThatNothingCanBeDividedBy) {
  for (const char* key :
       {"embedding_multiplier", "lm_head_multiplier", "key_multiplier", "attention_in_multiplier",
        "attention_out_multiplier", "ssm_in_multiplier", "ssm_out_multiplier"}) {
    EXPECT_EQ(error_for({{key, 0.3}}), "");
    for (const json& value : {json(0), json(-1), json(1e9), json("1")}) {
      EXPECT_THAT(error_for({{key, value}}), HasSubstr(key));
    }
  }
  EXPECT_EQ(error_for({{"mlp_multipliers", {0.3, 2}}}), "");
  EXPECT_EQ(error_for({{"ssm_multipliers", {0.3, 2, 3, 4, 5}}}), "");
  for (const json& value : {json(1), json({1}), json({1, 0}), json({1, "1"}), json({1, 1, 1})}) {
    EXPECT_THAT(error_for({{"mlp_multipliers", value}}),
                HasSubstr("mlp_multipliers: wanted 2 numbers in"));
    EXPECT_THAT(error_for({{"ssm_multipliers", value}}),
                HasSubstr("ssm_multipliers: wanted 5 numbers in"));
  }
}

TEST(FalconH1Config, EachBlockHasTheStatesOfBothLayers) {
  std::string arrays;
  for (const StateArray& array :
       load_on_paper(config_with(json::object()))->state_layout().arrays) {
    arrays += array.name + " ";
  }
  EXPECT_EQ(arrays, "conv h keys values conv h keys values position ");
}

// A null mamba_d_ssm is mamba_expand hidden_size, one that is missing is 1024.
TEST(FalconH1Config, ItsContextIsTheMostTokensOfAState) {
  EXPECT_EQ(load_on_paper(config_with({{"max_position_embeddings", 77}}))->info().most_tokens, 77);
}

TEST(FalconH1Config, WidthOfTheStateSpace) {
  const auto channels = [](const json& more, bool missing = false) {
    json config = config_with(more);
    config["mamba_n_heads"] = 4;
    if (missing) config.erase("mamba_d_ssm");
    return 4 * load_on_paper(config)->state_layout().arrays[1].shape[1];
  };
  EXPECT_EQ(channels(json::object()), 80);
  EXPECT_EQ(channels({{"mamba_d_ssm", nullptr}}), 96);
  EXPECT_EQ(channels({{"mamba_d_ssm", nullptr}, {"mamba_expand", 3}}), 144);
  EXPECT_EQ(channels(json::object(), true), 1024);
}

TEST(FalconH1Config, HasThePublishedSize) {
  const auto model = load_on_paper(
      read_json_file(std::string(RECURVE_SOURCE_DIR) + "/tests/configs/falcon-h1-0.5b.json", 1e6));
  EXPECT_EQ(model->info().parameters, 521'411'104);
  const StateLayout layout = model->state_layout();
  EXPECT_EQ(layout.bytes(), 36u * (1536 * 128 + 1792 * 3) * 4 + 4);
  EXPECT_EQ(layout.page_bytes(), 18'432u * kPageTokens);
}

}  // namespace recurve::testing::falcon_h1_test
