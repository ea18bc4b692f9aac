// What a device's kernels cannot take is refused as a model is loaded, before anything else.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/dry_run_backend.h"
#include "model/layers/required_ops.h"
#include "model/load_model.h"
#include "tests/support/engine/poor_backend.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::required_sizes_test {

using nlohmann::json;
using ::testing::HasSubstr;

// Kernels that take so much: as those of a GPU whose blocks have little shared memory.
Kernels limited(int keys, int states) {
  const auto at_most = [](const char* what, int found, int most) {
    return found <= most ? "" : fmt::format("{} {}, but {} at most", found, what, most);
  };
  Kernels kernels = make_backend("reference")->kernels();
  kernels.ssd.cannot = [=](const SsdArgs& a) {
    return a.chunk == 1 ? "" : at_most("keys a head", a.N, keys);
  };
  kernels.mlstm.cannot = [=](const MlstmArgs& a) { return at_most("keys a head", a.DK, keys); };
  kernels.gla.cannot = [=](const GlaArgs& a) {
    const bool own = a.decay == GlaDecay::kChannel;
    return at_most(own ? "keys of own decays" : "keys a head", a.DK, own ? keys / 2 : keys);
  };
  kernels.selective_scan.cannot = [=](const SelectiveScanArgs& a) {
    return at_most("states a channel", a.N, states);
  };
  kernels.rwkv7.cannot = [=](const Rwkv7Args& a) { return at_most("channels a head", a.N, keys); };
  kernels.delta_rule.cannot = [=](const DeltaRuleArgs& a) {
    return at_most("keys a head", a.DK, keys);
  };
  return kernels;
}

struct SizeCase {
  const char* name;
  json config;
  const char* op;
  int size;           // that is asked for
  const char* words;  // of it
};

std::vector<SizeCase> cases() {
  const json hf = {{"hidden_size", 64}, {"num_hidden_layers", 1}, {"vocab_size", 16}};
  const auto with = [&](const char* type, const json& more) {
    json config = hf;
    config["model_type"] = type;
    config.update(more);
    return config;
  };
  const json original = {{"d_model", 64},
                         {"n_layer", 1},
                         {"vocab_size", 16},
                         {"ssm_cfg", {{"layer", "Mamba2"}, {"d_state", 2048}}}};
  const json blocks = {{"model_type", "xlstm_blocks"},
                       {"embedding_dim", 64},
                       {"num_blocks", 1},
                       {"vocab_size", 16},
                       {"mlstm_block", {{"mlstm", {{"num_heads", 2}}}}}};
  const char* sigmoid = "chunkwise--native_siging_autograd";
  const char* keys = "keys a head";
  return {
      {"mamba2", with("mamba2", {{"n_groups", 1}, {"state_size", 2048}}), "ssd", 2048, keys},
      {"mamba2_original", original, "ssd", 2048, keys},
      {"mamba", with("mamba", {{"state_size", 32}}), "selective_scan", 32, "states a channel"},
      {"falcon", with("falcon_mamba", {{"state_size", 32}}), "selective_scan", 32,
       "states a channel"},
      {"xlstm", with("xlstm", {{"num_heads", 1}}), "mlstm", 32, keys},
      {"xlstm_sigmoid", with("xlstm", {{"num_heads", 1}, {"chunkwise_kernel", sigmoid}}), "gla", 32,
       keys},
      {"xlstm_blocks", blocks, "mlstm", 64, keys},
      {"gla", with("gla", {{"num_heads", 2}}), "gla", 16, "keys of own decays"},
      {"retnet", with("retnet", {{"num_heads", 2}}), "gla", 32, keys},
      {"linear_attn", with("linear_attn", {{"num_heads", 4}, {"feature_map", "hedgehog"}}), "gla",
       32, keys},
      {"rwkv7", with("rwkv7", {{"head_dim", 64}}), "rwkv7", 64, "channels a head"},
      {"delta_net", with("delta_net", {{"num_heads", 2}}), "delta_rule", 32, keys},
      {"gated_deltanet", with("gated_deltanet", {{"head_dim", 48}}), "delta_rule", 48, keys},
  };
}

class SizeTest : public ::testing::TestWithParam<SizeCase> {};

std::string refusal(const Backend& real, const json& config, const LoadOptions& options = {}) {
  DryRunBackend dry_run(real);
  return error_of([&] {
    Checkpoint checkpoint = Checkpoint::random(config, 1);
    checkpoint.leave_out_copies();
    load_model(checkpoint, dry_run, options);
  });
}

TEST_P(SizeTest, MoreThanTheKernelsTakeIsRefused) {
  const SizeCase& c = GetParam();
  const bool own = std::string_view(c.words) == "keys of own decays";
  const int most = c.size - 1;
  PoorBackend poor(limited(own ? 2 * most : most, most));
  Checkpoint checkpoint = Checkpoint::random(c.config, 1);
  const std::string error = error_of([&] { load_model(checkpoint, poor, {}); });
  EXPECT_THAT(error, HasSubstr("backend 'poor' cannot run this model of the family "));
  EXPECT_THAT(error, HasSubstr(fmt::format("its kernel of {}, 'reference', cannot take {} {}, but "
                                           "{} at most; the device cpu can",
                                           c.op, c.size, c.words, most)));
}

TEST_P(SizeTest, WhatTheyTakeIsNot) {
  const SizeCase& c = GetParam();
  EXPECT_EQ(refusal(PoorBackend(limited(2 * c.size, c.size)), c.config), "");
  EXPECT_EQ(refusal(PoorBackend(make_backend("reference")->kernels()), c.config), "");
}

INSTANTIATE_TEST_SUITE_P(Families, SizeTest, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

// With the chunk that is asked for: one row goes the step form, which holds other sizes.
TEST(RequiredSizes, AreAskedForWithTheChunk) {
  const json config = cases().front().config;
  const PoorBackend poor(limited(1024, 16));
  EXPECT_THAT(refusal(poor, config), HasSubstr("cannot take 2048 keys"));
  EXPECT_EQ(refusal(poor, config, {.chunk = 1}), "");
}

}  // namespace recurve::testing::required_sizes_test
