// Granite 4.0 H: what of a config is refused and how, and its layers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/load_on_paper.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::granite_hybrid_test {

using nlohmann::json;
using ::testing::HasSubstr;

json config_with(const json& more) {
  json config = {{"model_type", "granitemoehybrid"},
                 {"hidden_size", 48},
                 {"num_hidden_layers", 2},
                 {"vocab_size", 16},
                 {"shared_intermediate_size", 40},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"num_local_experts", 0},
                 {"mamba_n_heads", 6},
                 {"mamba_d_state", 16},
                 {"layer_types", {"mamba", "attention"}}};
  config.update(more);
  return config;
}

std::string error_for(const json& more) {
  return error_of([&] { load_on_paper(config_with(more)); });
}

TEST(GraniteHybridConfig, RefusesWhatWouldChangeTheMaths) {
  EXPECT_EQ(error_for(json::object()), "");
  EXPECT_EQ(error_for({{"num_local_experts", 64}, {"num_experts_per_tok", 6}}), "");
  EXPECT_THAT(error_for({{"num_local_experts", 4}, {"num_experts_per_tok", 5}}),
              HasSubstr("num_experts_per_tok: wanted at most num_local_experts 4, found 5"));
  EXPECT_THAT(error_for({{"num_local_experts", -1}}), HasSubstr("num_local_experts"));
  EXPECT_EQ(error_for({{"mamba_d_head", "auto"}}), "");
  EXPECT_EQ(error_for({{"mamba_d_head", 16}}), "");
  EXPECT_THAT(error_for({{"mamba_d_head", 17}}), HasSubstr("mamba_d_head"));
  EXPECT_THAT(error_for({{"mamba_n_heads", 7}}), HasSubstr("a divisor of the inner width 96"));
  EXPECT_THAT(error_for({{"mamba_n_groups", 4}}), HasSubstr("a divisor of mamba_n_heads 6"));
  EXPECT_THAT(error_for({{"num_attention_heads", 5}}), HasSubstr("a divisor of hidden_size 48"));
  EXPECT_THAT(error_for({{"num_key_value_heads", 3}}), HasSubstr("num_key_value_heads"));
  EXPECT_THAT(error_for({{"layer_types", {"mamba"}}}), HasSubstr("a list of 2 layers"));
  EXPECT_THAT(error_for({{"layer_types", {"mamba", "mlp"}}}),
              HasSubstr("layer_types: wanted \"mamba\" or \"attention\""));
  EXPECT_THAT(error_for({{"position_embedding_type", "alibi"}}),
              HasSubstr("position_embedding_type"));
  EXPECT_THAT(error_for({{"position_embedding_type", "rope"},
                         {"rope_parameters", {{"rope_type", "yarn"}}}}),
              HasSubstr("rope_parameters"));
  EXPECT_THAT(error_for({{"residual_multiplier", 0}}), HasSubstr("residual_multiplier"));
  EXPECT_THAT(error_for({{"normalization_function", "layernorm"}}),
              HasSubstr("normalization_function"));
  EXPECT_THAT(error_for({{"time_step_limit", {1, 0}}}), HasSubstr("time_step_limit"));
  EXPECT_THAT(error_for({{"some_new_key", 1}}), HasSubstr("some_new_key"));
}

TEST(GraniteHybridConfig, LayersAreThoseOfTheConfigUnderEitherName) {
  const auto kinds = [](json more) {
    json config = config_with(more);
    if (more.contains("layers_block_type")) config.erase("layer_types");
    std::string kinds;
    for (const StateArray& array : load_on_paper(config)->state_layout().arrays)
      kinds += array.name + " ";
    return kinds;
  };
  EXPECT_EQ(kinds(json::object()), "conv h keys values position ");
  EXPECT_EQ(kinds({{"layers_block_type", {"attention", "mamba"}}}), "keys values conv h position ");
  EXPECT_EQ(kinds({{"layer_types", {"linear_attention", "full_attention"}}}),
            "conv h keys values position ");
  EXPECT_EQ(load_on_paper(config_with({{"max_position_embeddings", 77}}))->info().most_tokens, 77);
}

TEST(GraniteHybridConfig, ExpertsAreEightUnlessTheConfigSaysOtherwise) {
  const auto parameters = [](const json& more) {
    return load_on_paper(config_with(more))->info().parameters;
  };
  const json width = {{"intermediate_size", 10}};
  // Of two blocks: a router of 8 rows, and 8 experts of three matrices of 10 x 48.
  json null = width, some = width;
  null["num_local_experts"] = nullptr;
  EXPECT_EQ(parameters(null), parameters(json::object()) + 2 * 8 * (48 + 3 * 10 * 48));
  some.update({{"num_local_experts", 3}, {"num_experts_per_tok", 1}});
  EXPECT_EQ(parameters(some), parameters(json::object()) + 2 * 3 * (48 + 3 * 10 * 48));
}

}  // namespace recurve::testing::granite_hybrid_test
