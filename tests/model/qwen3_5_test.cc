// Qwen3.5: what of a config is refused and how, its public sizes, and checkpoints with more than
// text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/load_model.h"
#include "model/weights/json_file.h"
#include "tests/support/engine/model_runner.h"
#include "tests/support/golden.h"
#include "tests/support/load_on_paper.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_dir.h"

namespace recurve::testing::qwen3_5_test {

using nlohmann::json;
using ::testing::HasSubstr;

json config_with(const json& more) {
  json config = {{"model_type", "qwen3_5_text"}, {"hidden_size", 48},
                 {"num_hidden_layers", 4},       {"vocab_size", 16},
                 {"intermediate_size", 40},      {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},     {"head_dim", 16},
                 {"linear_num_key_heads", 2},    {"linear_num_value_heads", 4},
                 {"linear_key_head_dim", 16},    {"linear_value_head_dim", 16}};
  config.update(more);
  return config;
}

std::string error_for(const json& more) {
  return error_of([&] { load_on_paper(config_with(more)); });
}

TEST(Qwen35Config, RefusesWhatWouldChangeTheMaths) {
  EXPECT_EQ(error_for(json::object()), "");
  EXPECT_EQ(error_for({{"rope_parameters",
                        {{"rope_type", "default"},
                         {"rope_theta", 1e7},
                         {"partial_rotary_factor", 0.25},
                         {"mrope_section", {1, 1, 0}},
                         {"mrope_interleaved", true}}}}),
            "");
  EXPECT_THAT(error_for({{"rope_parameters", {{"rope_type", "yarn"}, {"factor", 4.0}}}}),
              HasSubstr("rope_parameters: wanted rope_type \"default\""));
  EXPECT_THAT(error_for({{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}),
              HasSubstr("rope_scaling"));
  EXPECT_THAT(error_for({{"layer_types", {"full_attention"}}}),
              HasSubstr("layer_types: wanted a list of 4 layers"));
  EXPECT_THAT(error_for({{"layer_types",
                          {"full_attention", "full_attention", "mamba", "linear_attention"}}}),
              HasSubstr("layer_types: wanted \"linear_attention\" or \"full_attention\""));
  EXPECT_THAT(error_for({{"num_key_value_heads", 3}}), HasSubstr("num_key_value_heads"));
  EXPECT_THAT(error_for({{"linear_num_value_heads", 3}}), HasSubstr("linear_num_value_heads"));
  EXPECT_THAT(error_for({{"hidden_act", "gelu"}}), HasSubstr("hidden_act"));
  EXPECT_THAT(error_for({{"attn_output_gate", false}}), HasSubstr("attn_output_gate"));
  EXPECT_THAT(error_for({{"partial_rotary_factor", 0.01}}), HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(error_for({{"rope_parameters", {{"partial_rotary_factor", -1.0}}}}),
              HasSubstr("partial_rotary_factor: wanted a number in (0, 1]"));
  EXPECT_THAT(error_for({{"rope_parameters", {{"rope_theta", 0.0}}}}), HasSubstr("rope_theta"));
  EXPECT_THAT(error_for({{"some_new_key", 1}}), HasSubstr("some_new_key"));
}

TEST(Qwen35Config, EveryFourthLayerIsAttentionUnlessLayersSayOtherwise) {
  const auto kinds = [](const json& more) {
    std::string kinds;
    for (const StateArray& array : load_on_paper(config_with(more))->state_layout().arrays) {
      kinds += array.name + " ";
    }
    return kinds;
  };
  EXPECT_EQ(kinds(json::object()), "S conv S conv S conv keys values position ");
  EXPECT_EQ(kinds({{"full_attention_interval", 2}}),
            "S conv keys values S conv keys values position ");
  EXPECT_EQ(
      kinds({{"num_hidden_layers", 2}, {"layer_types", {"full_attention", "linear_attention"}}}),
      "keys values S conv position ");
  EXPECT_EQ(load_on_paper(config_with({{"max_position_embeddings", 77}}))->info().most_tokens, 77);
}

json with_experts(const json& more) {
  json config = config_with({{"model_type", "qwen3_5_moe_text"},
                             {"num_experts", 6},
                             {"num_experts_per_tok", 2},
                             {"moe_intermediate_size", 10},
                             {"shared_expert_intermediate_size", 12}});
  config.erase("intermediate_size");
  config.update(more);
  return config;
}

TEST(Qwen35Config, RefusesExpertsThatAreNotThoseOfTheFamily) {
  const auto error_for = [](const json& more) {
    return error_of([&] { load_on_paper(with_experts(more)); });
  };
  EXPECT_EQ(error_for(json::object()), "");
  EXPECT_EQ(error_for({{"norm_topk_prob", true}, {"router_aux_loss_coef", 0.001}}), "");
  EXPECT_THAT(error_for({{"num_experts_per_tok", 7}}),
              HasSubstr("num_experts_per_tok: wanted at most num_experts 6, found 7"));
  EXPECT_THAT(error_for({{"num_experts", 0}}), HasSubstr("num_experts"));
  EXPECT_THAT(error_for({{"norm_topk_prob", false}}), HasSubstr("norm_topk_prob: wanted true"));
  EXPECT_THAT(error_for({{"mlp_only_layers", {4}}}),
              HasSubstr("mlp_only_layers: wanted a list of numbers below 4"));
  EXPECT_THAT(error_for({{"mlp_only_layers", {-1}}}), HasSubstr("mlp_only_layers"));
  EXPECT_THAT(error_for({{"mlp_only_layers", {1}}}), HasSubstr("intermediate_size"));
  EXPECT_THAT(error_for({{"n_group", 2}}), HasSubstr("n_group"));
  EXPECT_EQ(error_for({{"model_type", "qwen3_next"}, {"norm_topk_prob", false}}), "");
}

TEST(Qwen35Config, LayersOfQwen3NextMayHaveNoExperts) {
  const auto parameters = [](const json& more) {
    json config = with_experts({{"model_type", "qwen3_next"}, {"intermediate_size", 7}});
    config.update(more);
    return load_on_paper(config)->info().parameters;
  };
  // A router of 6 rows and the gate, 6 experts and the shared one; an MLP.
  const int64_t sparse = 7 * 48 + 3 * 48 * (6 * 10 + 12), dense = 3 * 48 * 7;
  const int64_t all = parameters(json::object());
  EXPECT_EQ(parameters({{"mlp_only_layers", {0, 3}}}), all - 2 * (sparse - dense));
  EXPECT_EQ(parameters({{"decoder_sparse_step", 3}}), all - 3 * (sparse - dense));
  EXPECT_EQ(parameters({{"num_experts", 0}}), all - 4 * (sparse - dense));
  EXPECT_EQ(load_on_paper(with_experts(json::object()))->info().description,
            "4 blocks, 1 with attention, width 48, 4 heads of 16 x 16, 6 experts of 10, 2 a token "
            "and a shared one of 12");
}

// Fused or one by one, the experts of a file are the same model.
TEST(Qwen35, ExpertsMayBeOneTensorOrOneEach) {
  const auto source = golden_dir() / "qwen3_5_moe/pattern";
  SafetensorsFile fused(source / "model.safetensors");
  SafetensorsWriter writer;
  for (const TensorView& view : fused.tensors()) {
    const std::string name(view.name);
    const std::string bytes(reinterpret_cast<const char*>(view.data), view.bytes);
    const size_t at = name.find("experts.");
    if (view.shape.size() != 3 || at == std::string::npos) {
      writer.add(name, "F32", view.shape, bytes);
      continue;
    }
    const size_t of_expert = view.bytes / static_cast<size_t>(view.shape[0]);
    for (int64_t e = 0; e < view.shape[0]; ++e) {
      const std::string prefix = name.substr(0, at) + "experts." + std::to_string(e) + ".";
      const std::string matrix = bytes.substr(static_cast<size_t>(e) * of_expert, of_expert);
      if (name.ends_with("down_proj")) {
        writer.add(prefix + "down_proj.weight", "F32", {view.shape[1], view.shape[2]}, matrix);
        continue;
      }
      const Shape half = {view.shape[1] / 2, view.shape[2]};
      writer.add(prefix + "gate_proj.weight", "F32", half, matrix.substr(0, of_expert / 2));
      writer.add(prefix + "up_proj.weight", "F32", half, matrix.substr(of_expert / 2));
    }
  }
  TempDir dir;
  writer.write(dir.path() / "model.safetensors");
  std::filesystem::copy(source / "config.json", dir.path());
  const auto logits = [](const std::filesystem::path& directory) {
    ModelRunner runner(directory, DType::kF32, "reference");
    const StateSlot slot = *runner.pool().acquire();
    return runner.forward({{&slot, {1, 2, 3, 5, 8, 13, 21}}});
  };
  EXPECT_EQ(logits(dir.path()), logits(source));
}

struct Public {
  const char* file;
  int64_t parameters, slot, token;  // bytes of a state: at any length, and of each token
};

TEST(Qwen35Config, HasThePublishedSize) {
  // 3 delta layers to one of attention: four layers and few tokens, the rest by multiplication.
  for (const Public& p :
       {Public{"qwen3.5-0.8b", 752'393'024, 18'874'368 + 1'327'104, 12'288},
        Public{"qwen3.5-2b", 1'881'825'088, 18'874'368 + 1'327'104, 12'288},
        Public{"qwen3.5-9b", 8'953'803'264, 50'331'648 + 2'359'296, 32'768},
        Public{"qwen3.5-35b-a3b", 34'660'610'688, 62'914'560 + 2'949'120, 20'480},
        Public{"qwen3-next-80b-a3b", 79'674'391'296, 75'497'472 + 3'538'944, 24'576}}) {
    json config =
        read_json_file(std::string(RECURVE_SOURCE_DIR) + "/tests/configs/" + p.file + ".json", 1e6);
    const int64_t vocab = config["vocab_size"], D = config["hidden_size"];
    const int64_t groups = config["num_hidden_layers"].get<int64_t>() / 4;
    config["vocab_size"] = 16;
    config["num_hidden_layers"] = 4;
    const auto model = load_on_paper(config);
    const int64_t tables = config["tie_word_embeddings"] ? 1 : 2;
    const int64_t layers = model->info().parameters - tables * 16 * D - D;
    EXPECT_EQ(groups * layers + tables * vocab * D + D, p.parameters) << p.file;
    const StateLayout layout = model->state_layout();
    EXPECT_EQ(groups * (static_cast<int64_t>(layout.bytes()) - 4), p.slot) << p.file;
    EXPECT_EQ(groups * static_cast<int64_t>(layout.page_bytes()), p.token * kPageTokens) << p.file;
  }
}

// A checkpoint as the Hub has it: the tensors of the text model, and those of others next to it.
TEST(Qwen35, TensorsForPicturesAndFurtherTokensAreSkippedAndCounted) {
  const auto source = golden_dir() / "qwen3_5/pattern";
  SafetensorsFile text(source / "model.safetensors");
  SafetensorsWriter writer;
  for (const TensorView& view : text.tensors()) {
    writer.add(std::string(view.name), "F32", view.shape,
               {reinterpret_cast<const char*>(view.data), view.bytes});
  }
  writer.add_f32("mtp.fc.weight", {2}, {1, 2}).add_f32("model.visual.pos_embed.weight", {1}, {3});
  TempDir dir;
  writer.write(dir.path() / "model.safetensors");
  std::filesystem::copy(source / "config.json", dir.path());
  const auto backend = make_backend("reference");
  Checkpoint with = Checkpoint::open(dir.path()), without = Checkpoint::open(source);
  const auto model = load_model(with, *backend, {});
  EXPECT_THAT(model->info().description,
              HasSubstr("; 2 tensors for pictures and further tokens are not used"));
  EXPECT_EQ(model->info().parameters, load_model(without, *backend, {})->info().parameters);
}

}  // namespace recurve::testing::qwen3_5_test
