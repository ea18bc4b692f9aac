// How the configs of Mamba, Falcon Mamba and Mamba-2 are read: the public ones, and what is
// refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/load_model.h"
#include "model/weights/json_file.h"
#include "tests/support/engine/poor_backend.h"

namespace recurve::mamba_test {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::unique_ptr<const Model> load(const json& config) {
  static const std::unique_ptr<Backend> backend = make_backend("reference");
  Checkpoint checkpoint = Checkpoint::random(config, 1, "d/config.json");
  return load_model(checkpoint, *backend, {});
}

std::string error_of(const json& config) {
  try {
    load(config);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

struct PublicConfig {
  const char* file;
  const char* family;
  const char* layers_key;
  int64_t layers, D, V;
  bool tied;
  int64_t parameters;   // as published
  int64_t state_bytes;  // of h, in fp32, all layers
  int64_t conv_values;  // all layers
};

class PublicConfigTest : public ::testing::TestWithParam<PublicConfig> {};

// One layer and few tokens of it, and the rest by multiplication.
TEST_P(PublicConfigTest, HasThePublishedSize) {
  constexpr int64_t kVocab = 16;
  const PublicConfig& p = GetParam();
  json config = read_json_file(std::string(RECURVE_SOURCE_DIR) + "/tests/configs/" + p.file, 1e6);
  ASSERT_EQ(config[p.layers_key], p.layers);
  EXPECT_LE(config["vocab_size"].get<int64_t>(), p.V);
  for (const char* key : {"n_layer", "num_hidden_layers"}) {
    if (config.contains(key)) config[key] = 1;
  }
  config["vocab_size"] = kVocab;
  const std::unique_ptr<const Model> model = load(config);
  EXPECT_EQ(model->info().family, p.family);
  EXPECT_EQ(model->info().vocab, kVocab);
  const int64_t heads = p.tied ? 1 : 2;
  const int64_t layer = model->info().parameters - heads * kVocab * p.D - p.D;
  EXPECT_EQ(layer * p.layers + heads * p.V * p.D + p.D, p.parameters);
  for (const StateArray& array : model->state_layout().arrays) {
    const int64_t count = static_cast<int64_t>(array.elements()) * p.layers;
    EXPECT_EQ(count * (array.name == "h" ? 4 : 1),
              array.name == "h" ? p.state_bytes : p.conv_values)
        << array.name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Mamba, PublicConfigTest,
    ::testing::Values(PublicConfig{"mamba-2.8b.json", "mamba", "num_hidden_layers", 64, 2560, 50280,
                                   true, 2768345600, 20971520, 983040},
                      PublicConfig{"falcon-mamba-7b.json", "falcon_mamba", "num_hidden_layers", 64,
                                   4096, 65024, false, 7272665088, 33554432, 1572864},
                      PublicConfig{"mamba2-2.7b.json", "mamba2", "n_layer", 64, 2560, 50288, true,
                                   2702599680, 167772160, 1032192},
                      PublicConfig{"codestral-7b.json", "mamba2", "num_hidden_layers", 64, 4096,
                                   32768, false, 7285403648, 268435456, 1966080}),
    [](const auto& info) {
      std::string name = info.param.file;
      std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
      return name;
    });

json mamba_config() {
  return {{"model_type", "mamba"},
          {"hidden_size", 32},
          {"num_hidden_layers", 1},
          {"state_size", 4},
          {"vocab_size", 8}};
}
json original_config(const char* layer) {
  return {{"d_model", 32}, {"n_layer", 1}, {"vocab_size", 9}, {"ssm_cfg", {{"layer", layer}}}};
}
json mamba2_config() {
  return {{"model_type", "mamba2"}, {"hidden_size", 32}, {"num_hidden_layers", 1},
          {"state_size", 4},        {"vocab_size", 8},   {"head_dim", 16},
          {"n_groups", 2}};
}
json with(json config, const char* key, const json& value) {
  config[key] = value;
  return config;
}

TEST(MambaConfig, Defaults) {
  EXPECT_EQ(load(mamba_config())->state_layout().arrays[0].shape, (std::vector<int64_t>{64, 3}));
  EXPECT_EQ(load(mamba_config())->state_layout().arrays[1].shape, (std::vector<int64_t>{64, 4}));
  EXPECT_EQ(load(with(mamba_config(), "time_step_rank", "auto"))->info().parameters,
            load(with(mamba_config(), "time_step_rank", 2))->info().parameters);
  // The family of an original config is in its ssm_cfg, and its vocabulary is padded.
  EXPECT_EQ(load(original_config("Mamba1"))->info().family, "mamba");
  EXPECT_EQ(load(original_config("Mamba1"))->info().vocab, 16);
  EXPECT_EQ(load(with(original_config("Mamba1"), "ssm_cfg", json::object()))->info().family,
            "mamba");
  EXPECT_EQ(load(original_config("Mamba2"))->info().family, "mamba2");
  EXPECT_EQ(load(mamba2_config())->state_layout().arrays[0].shape,
            (std::vector<int64_t>{64 + 2 * 2 * 4, 3}));
  EXPECT_EQ(load(mamba2_config())->state_layout().arrays[1].shape,
            (std::vector<int64_t>{4, 16, 4}));
}

TEST(MambaConfig, RefusesWhatWouldChangeTheMaths) {
  for (const json& config : {mamba_config(), mamba2_config()}) {
    EXPECT_EQ(error_of(config), "");
    const auto refused = [&](const char* key, const json& value) {
      EXPECT_THAT(error_of(with(config, key, value)), HasSubstr(key)) << value;
    };
    refused("hidden_act", "gelu");
    refused("rms_norm", false);
    refused("d_intermediate", 64);
    refused("attn_layer_idx", {9, 18});
    refused("conv_kernel", 1);
    refused("layer_norm_epsilon", -1);
    refused("norm_epsilon", 1e-3);  // which no package reads
    refused("some_new_key", 1);
    refused("ssm_cfg", {{"layer", "Mamba3"}});
    refused("num_hidden_layers", 0);
  }
  json none = with(mamba_config(), "hidden_size", 16);
  none.erase("intermediate_size");
  EXPECT_THAT(error_of(with(none, "expand", 1.0 / 64)), HasSubstr("expand: wanted at least one"));
  EXPECT_THAT(error_of(with(mamba_config(), "mixer_rms_eps", 1e-6)), HasSubstr("mixer_rms_eps"));
  EXPECT_THAT(error_of(with(mamba_config(), "time_step_rank", "half")),
              HasSubstr("time_step_rank"));
}

TEST(MambaConfig, RefusesUnknownSettingsOfTheOriginals) {
  for (const char* layer : {"Mamba1", "Mamba2"}) {
    EXPECT_EQ(error_of(original_config(layer)), "");
    json config = original_config(layer);
    config["ssm_cfg"]["something"] = 1;
    EXPECT_THAT(error_of(config), HasSubstr("ssm_cfg: wanted only keys"));
  }
  for (const auto& [key, value] : std::vector<std::pair<const char*, json>>{
           {"norm_before_gate", true}, {"rmsnorm", false}, {"D_has_hdim", true}, {"d_ssm", 16}}) {
    json config = original_config("Mamba2");
    config["ssm_cfg"][key] = value;
    EXPECT_THAT(error_of(config), HasSubstr(std::string("ssm_cfg: ") + key));
  }
}

TEST(MambaConfig, RefusesSizesThatDoNotFit) {
  EXPECT_THAT(error_of(with(mamba2_config(), "num_heads", 5)),
              HasSubstr("num_heads: wanted 4, which is all that is implemented, found 5"));
  EXPECT_THAT(error_of(with(mamba2_config(), "head_dim", 24)),
              HasSubstr("head_dim: wanted a divisor of the inner width 64, found 24"));
  EXPECT_THAT(error_of(with(mamba2_config(), "n_groups", 3)),
              HasSubstr("n_groups: wanted a divisor of the number of heads 4, found 3"));
}

TEST(MambaConfig, TimeStepLimits) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const json& limits : {json{0, kInfinity}, json{0.0, 1e300}, json{0.01, 0.1}, json(nullptr),
                             json{0.0, {{"__float__", "Infinity"}}}}) {
    EXPECT_EQ(error_of(with(mamba2_config(), "time_step_limit", limits)), "") << limits;
  }
  for (const json& limits : {json{0.1, 0.01}, json{-1, 1}, json{0}, json{0, 1, 2}, json{0, "inf"},
                             json("none"), json{0, {{"__float__", "NaN"}}}}) {
    EXPECT_THAT(error_of(with(mamba2_config(), "time_step_limit", limits)),
                HasSubstr("time_step_limit: wanted"))
        << limits;
  }
}

TEST(MambaConfig, RefusesBackendsThatCannotRunIt) {
  Kernels kernels = make_backend("reference")->kernels();
  kernels.ssd = {};
  kernels.causal_conv1d = {};
  testing::PoorBackend backend(kernels);
  Checkpoint checkpoint = Checkpoint::random(mamba2_config(), 1);
  try {
    load_model(checkpoint, backend, {});
    FAIL() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(),
                 "backend 'poor' cannot run models of the family mamba2: it has no kernels for: "
                 "causal_conv1d, ssd; the device cpu has them");
  }
}

}  // namespace recurve::mamba_test
