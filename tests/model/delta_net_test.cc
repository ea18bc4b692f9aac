// DeltaNet and Gated DeltaNet: what of a config is refused and how, sizes, and where they run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/dry_run_backend.h"
#include "model/layers/required_ops.h"
#include "model/load_model.h"
#include "tests/support/engine/listing_backend.h"
#include "tests/support/engine/poor_backend.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::delta_net_test {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

json config_with(const std::string& type, const json& more) {
  json config = {{"model_type", type}, {"hidden_size", 48}, {"num_hidden_layers", 1},
                 {"vocab_size", 16},   {"num_heads", 2},    {"intermediate_size", 40},
                 {"head_dim", 12}};
  if (type == "delta_net") config.erase("head_dim");
  for (const auto& [key, value] : more.items()) config[key] = value;
  return config;
}

std::unique_ptr<const Model> load(const json& config, Backend& backend) {
  Checkpoint checkpoint = Checkpoint::random(config, 1);
  return load_model(checkpoint, backend, {});
}

std::string error_for(const std::string& type, const json& more) {
  const auto backend = make_backend("reference");
  return error_of([&] { load(config_with(type, more), *backend); });
}

TEST(DeltaNetConfig, RefusesWhatWouldChangeTheMaths) {
  for (const std::string type : {"delta_net", "gated_deltanet"}) {
    EXPECT_EQ(error_for(type, json::object()), "");
    EXPECT_THAT(error_for(type, {{"attn", {{"layers", {1}}}}}), HasSubstr("attn: wanted null"));
    EXPECT_THAT(error_for(type, {{"attnres_block_size", 2}}), HasSubstr("attnres_block_size"));
    EXPECT_THAT(error_for(type, {{"conv_bias", true}}), HasSubstr("conv_bias"));
    EXPECT_THAT(error_for(type, {{"hidden_act", "relu"}}), HasSubstr("hidden_act"));
    EXPECT_THAT(error_for(type, {{"some_new_key", 1}}), HasSubstr("some_new_key"));
  }
  EXPECT_THAT(error_for("delta_net", {{"num_heads", 5}}),
              HasSubstr("num_heads: wanted a divisor of the key and value widths 48 and 48"));
  EXPECT_THAT(error_for("delta_net", {{"qk_norm", "l1"}}), HasSubstr("qk_norm"));
  EXPECT_THAT(error_for("delta_net", {{"qk_activation", "gelu"}}), HasSubstr("qk_activation"));
  EXPECT_THAT(error_for("gated_deltanet", {{"num_v_heads", 3}}),
              HasSubstr("num_v_heads: wanted a multiple of num_heads 2, found 3"));
  EXPECT_THAT(error_for("gated_deltanet", {{"output_gate_activation", "relu"}}),
              HasSubstr("output_gate_activation"));
  // What only one of them has is not a key of the other.
  EXPECT_THAT(error_for("delta_net", {{"num_v_heads", 4}}), HasSubstr("num_v_heads"));
  EXPECT_THAT(error_for("gated_deltanet", {{"qk_norm", "l2"}}), HasSubstr("qk_norm"));
}

TEST(DeltaNetConfig, SizesFollowFromIt) {
  const auto backend = make_backend("reference");
  const auto groups =
      load(config_with("gated_deltanet", {{"num_v_heads", 4}, {"expand_v", 1.5}}), *backend);
  const StateLayout layout = groups->state_layout();
  ASSERT_EQ(layout.arrays.size(), 2u);
  EXPECT_EQ(layout.arrays[0].shape, (std::vector<int64_t>{4, 12, 18}));
  EXPECT_EQ(layout.arrays[1].shape, (std::vector<int64_t>{2 * 24 + 72, 3}));
  const auto plain = load(config_with("delta_net", {{"use_short_conv", false}}), *backend);
  EXPECT_EQ(plain->state_layout().arrays.size(), 1u);
}

// Kernels round what they solve for only where no beta is above 1: so they are told.
TEST(DeltaNetConfig, SaysWhetherBetaIsBounded) {
  Kernels kernels = make_backend("reference")->kernels();
  std::vector<bool> told;
  kernels.delta_rule.cannot = [&told](const DeltaRuleArgs& a) {
    told.push_back(a.bounded_beta);
    return std::string();
  };
  DryRunBackend backend(PoorBackend{kernels});
  for (const std::string type : {"delta_net", "gated_deltanet"}) {
    told.clear();
    load(config_with(type, {}), backend);
    load(config_with(type, {{"allow_neg_eigval", true}}), backend);
    EXPECT_EQ(told, (std::vector{true, false})) << type;
  }
}

// What a backend has no kernels for is said before anything is loaded.
TEST(DeltaNetDevices, WithoutItsKernelsAreRefused) {
  Kernels none;
  ListingBackend backend(none, "delta_rule");
  try {
    load(config_with("gated_deltanet", {}), backend);
    ADD_FAILURE() << "was not refused";
  } catch (const MissingKernels& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("cannot run models of the family gated_deltanet"),
                                    HasSubstr("delta_rule; the device cpu has them")));
  }
}

}  // namespace recurve::testing::delta_net_test
