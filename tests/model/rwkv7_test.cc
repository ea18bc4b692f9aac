// RWKV-7: what of a config and of a file is refused and how; sizes; where ranks come from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/layers/required_ops.h"
#include "model/load_model.h"
#include "model/weights/json_file.h"
#include "tests/support/engine/listing_backend.h"
#include "tests/support/engine/model_runner.h"
#include "tests/support/golden.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::rwkv7_test {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

json config_with(const json& more) {
  json config = {{"model_type", "rwkv7"}, {"hidden_size", 128},      {"num_hidden_layers", 2},
                 {"vocab_size", 16},      {"intermediate_size", 40}, {"decay_low_rank_dim", 6},
                 {"a_low_rank_dim", 5},   {"gate_low_rank_dim", 7},  {"v_low_rank_dim", 3}};
  for (const auto& [key, value] : more.items()) config[key] = value;
  return config;
}

std::unique_ptr<const Model> load(const json& config, Backend& backend,
                                  const LoadOptions& options = {}) {
  Checkpoint checkpoint = Checkpoint::random(config, 1);
  return load_model(checkpoint, backend, options);
}

std::string error_for(const json& more) {
  const auto backend = make_backend("reference");
  return error_of([&] { load(config_with(more), *backend); });
}

TEST(Rwkv7Config, RefusesWhatWouldChangeTheMaths) {
  EXPECT_EQ(error_for(json::object()), "");
  EXPECT_EQ(error_for({{"num_heads", 2}, {"value_dim", {128, 128}}, {"attn", nullptr}}), "");
  EXPECT_THAT(error_for({{"attn", {{"layers", {1}}}}}), HasSubstr("attn"));
  EXPECT_THAT(error_for({{"head_size", 64}}),
              HasSubstr("head_size: wanted none: python -m weights_tools convert"));
  EXPECT_THAT(error_for({{"head_dim", 32}}), HasSubstr("head_dim: wanted 64, found 32"));
  EXPECT_THAT(error_for({{"hidden_size", 100}}), HasSubstr("a multiple of head_dim 64"));
  EXPECT_THAT(error_for({{"num_heads", 4}}), HasSubstr("hidden_size / head_dim, 2, found 4"));
  EXPECT_THAT(error_for({{"value_dim", {128, 256}}}),
              HasSubstr("value_dim: wanted hidden_size, 128, for every layer, found 256"));
  EXPECT_THAT(error_for({{"hidden_act", "relu"}}), HasSubstr("hidden_act"));
  EXPECT_THAT(error_for({{"norm_bias", false}}), HasSubstr("norm_bias"));
  EXPECT_THAT(error_for({{"norm_first", false}}), HasSubstr("norm_first"));
  EXPECT_THAT(error_for({{"some_new_key", 1}}), HasSubstr("some_new_key"));
}

struct PublicSize {
  std::string file;
  int64_t D, parameters, state_bytes;  // as BlinkDL counts them; of S in fp32
};

class PublicRwkv7Config : public ::testing::TestWithParam<PublicSize> {};

// Two layers and few tokens, and the rest by multiplication.
TEST_P(PublicRwkv7Config, HasThePublishedSize) {
  const PublicSize& p = GetParam();
  json config = read_json_file(std::string(RECURVE_SOURCE_DIR) + "/tests/configs/" + p.file, 1e6);
  const int64_t layers = config["num_hidden_layers"], vocab = config["vocab_size"];
  const auto backend = make_backend("reference");
  std::vector<int64_t> found;
  for (const int few : {1, 2}) {
    config["num_hidden_layers"] = few;
    config["value_dim"] = std::vector<int64_t>(few, p.D);
    config["vocab_size"] = 16;
    const auto model = load(config, *backend);
    found.push_back(model->info().parameters);
    EXPECT_EQ(static_cast<int64_t>(model->state_layout().arrays[0].bytes()) * layers,
              p.state_bytes);
  }
  const int64_t layer = found[1] - found[0];
  // BlinkDL counts the value mix of the first layer, which has none.
  const int64_t rank = config["v_low_rank_dim"], unused = p.D + 2 * p.D * rank;
  const int64_t all = found[0] + (layers - 1) * layer + 2 * (vocab - 16) * p.D + unused;
  EXPECT_EQ(all, p.parameters);
}

INSTANTIATE_TEST_SUITE_P(
    Models, PublicRwkv7Config,
    ::testing::Values(PublicSize{"rwkv7-0.1b.json", 768, 191084544, 2359296},
                      PublicSize{"rwkv7-0.4b.json", 1024, 450834432, 6291456},
                      PublicSize{"rwkv7-1.5b.json", 2048, 1527668736, 12582912},
                      PublicSize{"rwkv7-2.9b.json", 2560, 2948065280, 20971520},
                      PublicSize{"rwkv7-7.2b.json", 4096, 7199932416, 33554432}),
    [](const auto& info) {
      std::string name = info.param.file;
      std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
      return name;
    });

// A checkpoint whose config says other ranks than its tensors have, or none.
TEST(Rwkv7Ranks, AreThoseOfTheTensors) {
  const auto source = golden_dir() / "rwkv7/one_head";
  TempDir dir;
  std::filesystem::copy(source / "model.safetensors", dir / "model.safetensors");
  json config = read_json_file(source / "config.json", 1e6);
  for (const char* key : {"decay", "a", "v", "gate"}) {
    config[std::string(key) + "_low_rank_dim"] = 64;
  }
  std::ofstream(dir / "config.json") << config.dump();
  const auto backend = make_backend("reference");
  Checkpoint said = Checkpoint::open(dir.path()), golden = Checkpoint::open(source);
  EXPECT_EQ(load_model(said, *backend, {})->info().parameters,
            load_model(golden, *backend, {})->info().parameters);
}

// Tensors of a variant that computes something else are named, and so is what does not fit.
TEST(Rwkv7Tensors, ThatDoNotFitAreNamed) {
  const auto source = golden_dir() / "rwkv7/heads";
  json config = read_json_file(source / "config.json", 1e6);
  config["num_hidden_layers"] = 2;
  config["vocab_size"] = 62;
  TempDir dir;
  std::filesystem::copy(source / "model.safetensors", dir / "model.safetensors");
  std::ofstream(dir / "config.json") << config.dump();
  const auto backend = make_backend("reference");
  EXPECT_THAT(error_of([&] {
                Checkpoint checkpoint = Checkpoint::open(dir.path());
                load_model(checkpoint, *backend, {});
              }),
              AllOf(HasSubstr("model.embeddings.weight"), HasSubstr("[61, 192]"),
                    HasSubstr("model.layers.1.attn_norm.weight")));
}

// A device that lacks its kernels: that is what is said, before anything is loaded.
TEST(Rwkv7Devices, WithoutItsKernelsAreRefused) {
  Kernels none;
  ListingBackend backend(none, "rwkv7");
  try {
    load(config_with({}), backend);
    ADD_FAILURE() << "was not refused";
  } catch (const MissingKernels& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("cannot run models of the family rwkv7"),
                                    HasSubstr("no kernels for: rwkv7; the device cpu has them")));
  }
}

}  // namespace recurve::testing::rwkv7_test
