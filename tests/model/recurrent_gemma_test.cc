// RecurrentGemma: what of a config is refused and how, and its public size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/weights/json_file.h"
#include "tests/support/load_on_paper.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::recurrent_gemma_test {

using nlohmann::json;
using ::testing::HasSubstr;

json config_with(const json& more) {
  json config = {{"model_type", "recurrent_gemma"}, {"hidden_size", 48},
                 {"num_hidden_layers", 3},          {"vocab_size", 16},
                 {"intermediate_size", 40},         {"num_attention_heads", 4},
                 {"num_key_value_heads", 1},        {"attention_window_size", 8}};
  config.update(more);
  return config;
}

std::string error_for(const json& more) {
  return error_of([&] { load_on_paper(config_with(more)); });
}

TEST(RecurrentGemmaConfig, RefusesWhatWouldChangeTheMaths) {
  EXPECT_EQ(error_for(json::object()), "");
  EXPECT_EQ(error_for({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e4}}}}), "");
  EXPECT_THAT(error_for({{"rope_parameters", {{"rope_type", "linear"}}}}),
              HasSubstr("rope_parameters: wanted rope_type \"default\""));
  EXPECT_THAT(error_for({{"rope_parameters", {{"type", "linear"}, {"factor", 8.0}}}}),
              HasSubstr("rope_parameters"));
  EXPECT_THAT(error_for({{"rope_parameters", {{"rope_theta", 1e4}, {"factor", 8.0}}}}),
              HasSubstr("rope_parameters"));
  EXPECT_THAT(error_for({{"rope_parameters", "default"}}), HasSubstr("wanted an object"));
  const json local = {"linear_attention", "linear_attention", "sliding_attention"};
  for (const char* key : {"layer_types", "layers_block_type"}) {
    EXPECT_EQ(error_for({{key, local}}), "");
    EXPECT_EQ(error_for({{key, {"recurrent", "recurrent", "attention"}}}), "");
    EXPECT_THAT(error_for({{key, {"attention", "recurrent", "attention"}}}),
                HasSubstr("wanted the layers that block_types gives"));
    EXPECT_THAT(error_for({{key, {"recurrent"}}}), HasSubstr(key));
  }
  const json blocks = {"attention", "recurrent"};
  EXPECT_EQ(error_for({{"block_types", blocks}, {"_block_types", blocks}}), "");
  EXPECT_THAT(error_for({{"_block_types", blocks}}),
              HasSubstr("_block_types: wanted the same as block_types"));
  EXPECT_THAT(error_for({{"block_types", {"recurrent", "mamba"}}}),
              HasSubstr("block_types: wanted a list of \"recurrent\" and \"attention\""));
  EXPECT_THAT(error_for({{"block_types", json::array()}}), HasSubstr("block_types"));
  EXPECT_THAT(error_for({{"num_attention_heads", 5}}), HasSubstr("a divisor of hidden_size 48"));
  EXPECT_THAT(error_for({{"num_key_value_heads", 3}}), HasSubstr("num_key_value_heads"));
  EXPECT_THAT(error_for({{"lru_width", 50}}), HasSubstr("lru_width: wanted a multiple"));
  EXPECT_THAT(error_for({{"hidden_activation", "gelu"}}), HasSubstr("hidden_activation"));
  EXPECT_THAT(error_for({{"embeddings_scale_by_sqrt_dim", false}}),
              HasSubstr("embeddings_scale_by_sqrt_dim"));
  EXPECT_THAT(error_for({{"partial_rotary_factor", 0.1}}), HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(error_for({{"some_new_key", 1}}), HasSubstr("some_new_key"));
}

TEST(RecurrentGemmaConfig, BlocksAreRepeatedAndCut) {
  const auto model = load_on_paper(config_with({{"num_hidden_layers", 5}}));
  std::string kinds;
  for (const StateArray& array : model->state_layout().arrays) kinds += array.name + " ";
  EXPECT_EQ(kinds, "h conv h conv ring_k ring_v h conv h conv position ");
}

// recurrentgemma-2b: three layers and few tokens, and the rest by multiplication.
TEST(RecurrentGemmaConfig, HasThePublishedSize) {
  json config = read_json_file(
      std::string(RECURVE_SOURCE_DIR) + "/tests/configs/recurrentgemma-2b.json", 1e6);
  const int64_t vocab = config["vocab_size"], D = config["hidden_size"];
  config["vocab_size"] = 16;
  std::vector<int64_t> parameters, bytes;
  for (const int layers : {2, 3}) {
    config["num_hidden_layers"] = layers;
    const auto model = load_on_paper(config);
    parameters.push_back(model->info().parameters);
    bytes.push_back(static_cast<int64_t>(model->state_layout().bytes()));
  }
  const int64_t around = 17 * D, recurrent = (parameters[0] - around) / 2;
  const int64_t attention = parameters[1] - parameters[0];
  EXPECT_EQ(18 * recurrent + 8 * attention + (vocab + 1) * D, 2'682'862'080);
  const int64_t of_recurrent = (bytes[0] - 4) / 2, of_attention = bytes[1] - bytes[0];
  EXPECT_EQ(18 * of_recurrent + 8 * of_attention + 4, 34'291'716);
}

}  // namespace recurve::testing::recurrent_gemma_test
