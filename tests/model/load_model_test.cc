// Which checkpoints are refused for what they are, and what the message says.
#include "model/load_model.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/families/family_list.h"
#include "tests/support/temp_dir.h"

namespace recurve::load_model_test {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string error_for(const json& config) {
  static const std::unique_ptr<Backend> backend = make_backend("reference");
  return error_of([&] {
    Checkpoint checkpoint = Checkpoint::random(config, 1, "d/config.json");
    load_model(checkpoint, *backend, {});
  });
}

std::vector<std::string_view> all_model_types() {
  std::vector<std::string_view> types;
  for (const Family& family : kFamilies) {
    for (const std::string_view type : family.model_types) {
      if (!type.empty()) types.push_back(type);
    }
  }
  return types;
}

// Transformers, hybrids of recurrences and attention, and recurrent models of other kinds.
TEST(LoadModel, NamesWhatItRefusesAndWhatThereIs) {
  const std::string listed = fmt::format("{}", fmt::join(all_model_types(), ", "));
  for (const char* type : {"llama", "mistral", "gpt_neox", "qwen2", "zamba", "samba", "rwkv8",
                           "hgrn", "mamba3", "mambapy", "MAMBA", ""}) {
    const json config = {{"model_type", type}, {"hidden_size", 64}, {"num_hidden_layers", 2},
                         {"vocab_size", 16},   {"num_heads", 2},    {"num_attention_heads", 2}};
    EXPECT_THAT(
        error_for(config),
        AllOf(StartsWith("d/config.json: model_type: wanted one of: " + listed + ", found "),
              EndsWith("found " + json(type).dump())));
  }
}

// For models whose recurrence is supported: what else is missing.
TEST(LoadModel, SaysWhatIsMissingOfAModelOfWhichAPartIsHere) {
  const auto refusal = [](const char* type) { return error_for({{"model_type", type}}); };
  EXPECT_EQ(refusal("olmo_hybrid"),
            "d/config.json: model_type: olmo_hybrid is not supported yet: the gated delta rule "
            "and attention are supported, but not its norms after attention");
  EXPECT_THAT(refusal("kimi_linear"), EndsWith("but not latent attention and low-rank gates"));
  EXPECT_THAT(refusal("kda"), HasSubstr("the delta rule with decays of channels is supported"));
  EXPECT_THAT(refusal("bamba"), EndsWith("but not combined as in its layers"));
  EXPECT_THAT(refusal("jamba"),
              EndsWith("experts are supported, but not combined as in its layers"));
  EXPECT_THAT(refusal("lfm2"), EndsWith("but not its gated short convolutions"));
  EXPECT_THAT(refusal("zamba2"), EndsWith("but not attention that layers share"));
  for (const char* type : {"rwkv", "rwkv5", "rwkv6", "rwkv6qwen2"}) {
    EXPECT_THAT(refusal(type), HasSubstr("of RWKV, only version 7"));
  }
}

TEST(LoadModel, NamesTheArchitectureWhereThereIsNoType) {
  EXPECT_THAT(error_for({{"architectures", {"RwkvForCausalLM"}}}),
              EndsWith("found no such key, and architectures [\"RwkvForCausalLM\"]"));
  EXPECT_THAT(error_for({{"d_model", 1}}), EndsWith("found no such key"));
  EXPECT_THAT(error_for({{"model_type", 7}}), EndsWith("found 7"));
  EXPECT_THAT(error_for({{"model_type", nullptr}}), EndsWith("found no such key"));
}

// The hybrids among the models of supported types.
TEST(LoadModel, RefusesLayersOfAttention) {
  json hybrid = {{"d_model", 32}, {"n_layer", 2}, {"vocab_size", 8}};
  hybrid["ssm_cfg"] = {{"layer", "Mamba2"}};
  hybrid["attn_layer_idx"] = {1};
  EXPECT_THAT(error_for(hybrid), HasSubstr("attn_layer_idx: wanted [], which is all that is "
                                           "implemented, found [1]"));
  for (const char* type :
       {"gla", "retnet", "linear_attn", "hgrn2", "delta_net", "gated_deltanet"}) {
    const json config = {{"model_type", type}, {"hidden_size", 256}, {"num_hidden_layers", 2},
                         {"vocab_size", 8},    {"num_heads", 2},     {"attn", {{"layers", {1}}}}};
    EXPECT_THAT(error_for(config), HasSubstr("attn: wanted null")) << type;
  }
}

}  // namespace recurve::load_model_test
