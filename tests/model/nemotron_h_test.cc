// Nemotron-H: what of a config is refused and how, and its layers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/load_on_paper.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::nemotron_h_test {

using nlohmann::json;
using ::testing::HasSubstr;

json config_with(const json& more) {
  json config = {{"model_type", "nemotron_h"}, {"hidden_size", 48},
                 {"num_hidden_layers", 3},     {"hybrid_override_pattern", "M-*"},
                 {"vocab_size", 16},           {"intermediate_size", 40},
                 {"num_attention_heads", 4},   {"num_key_value_heads", 2},
                 {"attention_head_dim", 16},   {"mamba_num_heads", 6},
                 {"mamba_head_dim", 16},       {"n_groups", 2},
                 {"ssm_state_size", 16}};
  config.update(more);
  return config;
}

std::string error_for(const json& more) {
  return error_of([&] { load_on_paper(config_with(more)); });
}

TEST(NemotronHConfig, RefusesWhatWouldChangeTheMaths) {
  EXPECT_EQ(error_for(json::object()), "");
  EXPECT_THAT(error_for({{"hybrid_override_pattern", "ME*"}}),
              HasSubstr("hybrid_override_pattern: wanted \"mamba\", \"attention\" or \"mlp\", as "
                        "experts without a gate are not supported, found \"E\""));
  EXPECT_THAT(error_for({{"layers_block_type", {"mamba", "moe", "attention"}}}),
              HasSubstr("layers_block_type: wanted"));
  EXPECT_THAT(error_for({{"layers_block_type", {"mamba", "M", "mlp"}}}),
              HasSubstr("layers_block_type: wanted"));
  EXPECT_THAT(error_for({{"layers_block_type", "M-*"}}), HasSubstr("a list of layers"));
  EXPECT_THAT(error_for({{"hybrid_override_pattern", nullptr}}),
              HasSubstr("wanted it or layers_block_type, found neither"));
  EXPECT_THAT(error_for({{"hybrid_override_pattern", 3}}), HasSubstr("wanted a string"));
  EXPECT_THAT(error_for({{"num_hidden_layers", 4}}),
              HasSubstr("num_hidden_layers: wanted the 3 layers of the list of layers, found 4"));
  EXPECT_THAT(error_for({{"hybrid_override_pattern", ""}, {"num_hidden_layers", nullptr}}),
              HasSubstr("num_hidden_layers"));
  EXPECT_THAT(error_for({{"hybrid_override_pattern", "-*-"}}),
              HasSubstr("wanted at least one layer of Mamba-2, found none"));
  EXPECT_THAT(error_for({{"n_groups", 4}}), HasSubstr("a divisor of mamba_num_heads 6"));
  EXPECT_THAT(error_for({{"num_key_value_heads", 3}}), HasSubstr("num_key_value_heads"));
  EXPECT_THAT(error_for({{"head_dim", 8}}), HasSubstr("attention_head_dim"));
  EXPECT_THAT(error_for({{"attention_bias", true}}), HasSubstr("attention_bias"));
  EXPECT_THAT(error_for({{"mamba_proj_bias", true}}), HasSubstr("mamba_proj_bias"));
  EXPECT_THAT(error_for({{"mlp_hidden_act", "silu"}}), HasSubstr("mlp_hidden_act"));
  EXPECT_THAT(error_for({{"sliding_window", 128}}), HasSubstr("sliding_window"));
  EXPECT_THAT(error_for({{"time_step_limit", {1, 0}}}), HasSubstr("time_step_limit"));
  EXPECT_THAT(error_for({{"some_new_key", 1}}), HasSubstr("some_new_key"));
}

TEST(NemotronHConfig, LayersAreThoseOfTheConfigUnderAnyName) {
  const auto arrays = [](const json& more) {
    std::string arrays;
    for (const StateArray& array : load_on_paper(config_with(more))->state_layout().arrays) {
      arrays += array.name + " ";
    }
    return arrays;
  };
  EXPECT_EQ(arrays(json::object()), "conv h keys values position ");
  EXPECT_EQ(arrays({{"layers_block_type", {"attention", "mlp", "mamba"}}}),
            "keys values conv h position ");
  EXPECT_EQ(arrays({{"layer_types", {"full_attention", "mlp", "linear_attention"}}}),
            "keys values conv h position ");
  EXPECT_EQ(arrays({{"hybrid_override_pattern", "-M-"}}), "conv h position ");
  EXPECT_EQ(load_on_paper(config_with({{"max_position_embeddings", 77}}))->info().most_tokens, 77);
}

}  // namespace recurve::testing::nemotron_h_test
