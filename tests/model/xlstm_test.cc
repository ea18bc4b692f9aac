// What the config of an xLSTM-large may not say.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/families/xlstm_config.h"
#include "model/load_model.h"
#include "tests/support/temp_dir.h"

namespace recurve::xlstm_test {

using ::testing::HasSubstr;

std::unique_ptr<const Model> load(const nlohmann::json& more) {
  static const std::unique_ptr<Backend> backend = make_backend("reference");
  nlohmann::json config = {{"model_type", "xlstm"},
                           {"embedding_dim", 64},
                           {"num_blocks", 1},
                           {"num_heads", 2},
                           {"vocab_size", 8}};
  config.update(more);
  Checkpoint checkpoint = Checkpoint::random(config, 1, "d/config.json");
  return load_model(checkpoint, *backend, {});
}

std::string error_for(const nlohmann::json& more) {
  return error_of([&] { load(more); });
}

std::string states_of(const nlohmann::json& more) {
  std::string names;
  for (const StateArray& array : load(more)->state_layout().arrays) names += array.name;
  return names;
}

constexpr const char* kSigmoid = "chunkwise--triton_xl_chunk_siging";

TEST(XlstmConfig, TheChunkwiseKernelSaysWhichCellItIs) {
  EXPECT_EQ(states_of(nlohmann::json::object()), "Cnm");
  EXPECT_EQ(states_of({{"chunkwise_kernel", "chunkwise--triton_xl_chunk"}}), "Cnm");
  EXPECT_EQ(states_of({{"normalize_siging", false}}), "Cnm");  // means nothing to this cell
  EXPECT_EQ(states_of({{"chunkwise_kernel", kSigmoid}}), "Cn");
  EXPECT_EQ(states_of({{"chunkwise_kernel", "parallel--native_siging_autograd"},
                       {"step_kernel", "triton"},  // the package has no other
                       {"normalize_siging", false}}),
            "C");
}

// As int(hidden_size * factor) of transformers' xLSTMLayer and of the package's mLSTMLayer.
TEST(XlstmConfig, WidthsOfQueriesAndValuesAreNotRoundedUp) {
  const auto description = [](const nlohmann::json& more) {
    return load(more)->info().description;
  };
  for (const int width : {96, 160, 320}) {
    EXPECT_THAT(description({{"embedding_dim", width}, {"mlstm_round_up_to_multiple_of", 64}}),
                HasSubstr(fmt::format("2 heads of {} x {}", width / 4, width / 2)));
  }
  EXPECT_THAT(description({{"qk_dim_factor", 0.4}, {"num_heads", 5}, {"v_dim_factor", 0.55}}),
              HasSubstr("5 heads of 5 x 7, feed-forward 192"));
  EXPECT_THAT(error_for({{"qk_dim_factor", 0.41}, {"num_heads", 5}}),
              HasSubstr("wanted a divisor of the query and value widths 26 and 64"));
  EXPECT_THAT(error_for({{"qk_dim_factor", 0.01}}), HasSubstr("widths 0 and 64"));
}

TEST(XlstmConfig, RefusesKernelsThatContradict) {
  for (const char* key : {"sequence_kernel", "step_kernel"}) {
    EXPECT_EQ(error_for({{key, "native"}}), "");
    EXPECT_THAT(error_for({{key, kSigmoid}}), HasSubstr(key));
    EXPECT_EQ(error_for({{key, kSigmoid}, {"chunkwise_kernel", kSigmoid}}), "");
  }
  EXPECT_THAT(error_for({{"normalize_siging", "yes"}, {"chunkwise_kernel", kSigmoid}}),
              HasSubstr("normalize_siging: wanted true or false"));
}

TEST(XlstmConfig, RefusesWhatWouldChangeTheMaths) {
  for (const char* key : {"use_bias", "add_qk_norm", "add_post_norm", "some_new_key"}) {
    EXPECT_THAT(error_for({{key, true}}), HasSubstr(key));
  }
  EXPECT_THAT(error_for({{"add_out_norm", false}}), HasSubstr("add_out_norm"));
  EXPECT_THAT(error_for({{"weight_mode", "packed"}}), HasSubstr("weight_mode"));
}

// No code reads cell_norm_eps: the heads' norm takes norm_eps.
TEST(XlstmConfig, RefusesAHeadNormOfAnotherEps) {
  EXPECT_EQ(error_for({{"cell_norm_eps", 1e-6}}), "");
  EXPECT_EQ(error_for({{"norm_eps", 1e-3}, {"cell_norm_eps", 1e-3}}), "");
  EXPECT_THAT(error_for({{"norm_eps", 1e-3}, {"cell_norm_eps", 1e-6}}),
              HasSubstr("cell_norm_eps: wanted the same as norm_eps, 0.001, found 1e-06"));
}

// Upstream's soft_cap(None) caps nothing: null is not the default.
TEST(XlstmConfig, ACapOfNullIsNone) {
  for (const char* key : {"gate_soft_cap", "output_logit_soft_cap"}) {
    nlohmann::json config = {{"model_type", "xlstm"}, {"embedding_dim", 64}, {"num_blocks", 1},
                             {"num_heads", 2},        {"vocab_size", 8},     {key, nullptr}};
    const xlstm::Config c = xlstm::read_config(Checkpoint::random(config, 1));
    EXPECT_EQ(c.gate_soft_cap, key == std::string("gate_soft_cap") ? 0 : 15);
    EXPECT_EQ(c.logit_soft_cap, key == std::string("gate_soft_cap") ? 30 : 0);
  }
}

}  // namespace recurve::xlstm_test
