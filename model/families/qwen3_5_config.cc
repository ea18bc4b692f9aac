#include "model/families/qwen3_5_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/weights/config_reader.h"

namespace recurve::qwen3_5 {
namespace {

// The grid of prompts; the configs name none.
constexpr int kChunk = 64;

// From layer_types or, in older files, every full_attention_interval-th.
std::vector<bool> read_layers(ConfigReader& read, const nlohmann::json& config) {
  const int64_t layers = read.required_int("num_hidden_layers", 1, 4096);
  const int64_t interval = read.optional_int("full_attention_interval", 4, 1, 4096);
  read.ignore({"layer_types"});
  std::vector<bool> attends;
  if (!read.has("layer_types")) {
    for (int64_t i = 0; i < layers; ++i) attends.push_back((i + 1) % interval == 0);
    return attends;
  }
  const nlohmann::json& types = config["layer_types"];
  if (!types.is_array() || types.size() != static_cast<size_t>(layers)) {
    read.fail("layer_types", fmt::format("a list of {} layers", layers), types.dump());
  }
  for (const nlohmann::json& type : types) {
    if (type != "linear_attention" && type != "full_attention") {
      read.fail("layer_types", "\"linear_attention\" or \"full_attention\"", type.dump());
    }
    attends.push_back(type == "full_attention");
  }
  return attends;
}

DeltaMixerConfig read_delta(ConfigReader& read, const Config& c) {
  DeltaMixerConfig delta;
  delta.D = c.D;
  delta.eps = c.eps;
  delta.HK = read.optional_int("linear_num_key_heads", 16, 1, 4096);
  delta.H = read.optional_int("linear_num_value_heads", 32, 1, 4096);
  if (delta.H % delta.HK != 0) {
    read.fail("linear_num_value_heads",
              fmt::format("a multiple of linear_num_key_heads {}", delta.HK),
              std::to_string(delta.H));
  }
  delta.DK = read.optional_int("linear_key_head_dim", 128, 1, 1 << 16);
  delta.DV = read.optional_int("linear_value_head_dim", 128, 1, 1 << 16);
  delta.width = read.optional_int("linear_conv_kernel_dim", 4, 2, 256);
  delta.gated = delta.output_gate = true;
  delta.chunk = kChunk;
  return delta;
}

AttentionConfig read_attention(ConfigReader& read, const nlohmann::json& config, const Config& c) {
  AttentionConfig attention;
  attention.D = c.D;
  attention.eps = c.eps;
  const bool has_experts = c.by_key_head || c.experts.E > 0;
  read_attention_heads(read, {.H = 16, .HK = has_experts ? 2 : 4, .head = 256}, attention);
  attention.scale = 1 / std::sqrt(static_cast<float>(attention.head));
  attention.bias = read.boolean("attention_bias", false);
  attention.head_norms = attention.output_gate = true;
  // Positions in pictures and films, which a text has none of.
  attention.rotary =
      read_rotary(read, config, attention.head, 0.25, {"mrope_section", "mrope_interleaved"});
  return attention;
}

// Which blocks have experts.
std::vector<bool> read_sparse(ConfigReader& read, const nlohmann::json& config, const Config& c,
                              size_t blocks) {
  const int64_t step = read.optional_int("decoder_sparse_step", 1, 1, 4096);
  read.ignore({"mlp_only_layers"});
  std::vector<bool> sparse;
  for (size_t b = 0; b < blocks; ++b) {
    sparse.push_back(c.experts.E > 0 && static_cast<int64_t>(b + 1) % step == 0);
  }
  if (!read.has("mlp_only_layers")) return sparse;
  const nlohmann::json& dense = config["mlp_only_layers"];
  const auto is_block = [&](const nlohmann::json& b) {
    return b.is_number_integer() && b >= 0 && b < blocks;
  };
  if (!dense.is_array() || !std::ranges::all_of(dense, is_block)) {
    read.fail("mlp_only_layers", fmt::format("a list of numbers below {}", blocks), dense.dump());
  }
  for (const nlohmann::json& b : dense) sparse[b.get<size_t>()] = false;
  return sparse;
}

ExpertsConfig read_experts(ConfigReader& read, const Config& c, bool next) {
  ExpertsConfig experts;
  experts.D = c.D;
  experts.eps = c.eps;
  experts.E = read.optional_int("num_experts", next ? 512 : 256, next ? 0 : 1, 1 << 16);
  experts.top = read.optional_int("num_experts_per_tok", next ? 10 : 8, 1, 1024);
  if (experts.E > 0 && experts.top > experts.E) {
    read.fail("num_experts_per_tok", fmt::format("at most num_experts {}", experts.E),
              std::to_string(experts.top));
  }
  experts.F = read.optional_int("moe_intermediate_size", 512, 1, 1 << 20);
  experts.shared = read.optional_int("shared_expert_intermediate_size", 512, 1, 1 << 20);
  experts.shared_gate = true;
  experts.renormalised = read.boolean("norm_topk_prob", true);
  if (!next && !experts.renormalised) read.fail("norm_topk_prob", "true", "false");
  // Of training.
  read.ignore({"output_router_logits", "router_aux_loss_coef"});
  return experts.E > 0 ? experts : ExpertsConfig{};
}

// The layers, and the widths of what stands between attention and mixers.
void read_feed_forward(ConfigReader& read, const nlohmann::json& config, bool has_experts,
                       Config& c) {
  const std::vector<bool> attends = read_layers(read, config);
  std::vector<bool> sparse(attends.size(), false);
  if (has_experts) {
    c.experts = read_experts(read, c, c.by_key_head);
    sparse = read_sparse(read, config, c, attends.size());
  }
  c.layers = with_feed_forward(attends, sparse);
  if (std::ranges::count(sparse, false) > 0) {
    c.F = read.required_int("intermediate_size", 1, 1 << 20);
  } else {
    read.ignore({"intermediate_size"});
  }
}

}  // namespace

const nlohmann::json& text_config(const Checkpoint& checkpoint) {
  const nlohmann::json& config = checkpoint.config();
  const auto text = config.find("text_config");
  return text != config.end() && text->is_object() ? *text : config;
}

Config read_config(const Checkpoint& checkpoint) {
  const nlohmann::json& config = text_config(checkpoint);
  ConfigReader read(config, checkpoint.config_file());
  Config c{};
  c.D = read.required_int("hidden_size", 1, 1 << 20);
  c.vocab = read.required_int("vocab_size", 1, 1 << 24);
  c.eps = static_cast<float>(read.optional_number("rms_norm_eps", 1e-6, 0, 1));
  // A file with pictures has the head's tie outside of its text part.
  const bool tied = read.boolean("tie_word_embeddings", false);
  c.tied = &config == &checkpoint.config() ? tied
                                           : checkpoint.config().value("tie_word_embeddings", tied);
  const nlohmann::json type = checkpoint.config().value("model_type", nlohmann::json());
  c.by_key_head = type == "qwen3_next";
  const bool has_experts = c.by_key_head || type == "qwen3_5_moe" || type == "qwen3_5_moe_text";
  read_feed_forward(read, config, has_experts, c);
  c.mixer = read_delta(read, c);
  c.attention = read_attention(read, config, c);
  c.most_tokens = read.optional_int("max_position_embeddings", 32768, 1, 1 << 30);
  read.string_one_of("hidden_act", "silu", {"silu"});
  read.must_be("attn_output_gate", true);
  // Of training, of how others store states, and of the layer that predicts a further token.
  read.ignore({"attention_dropout", "mamba_ssm_dtype", "mtp_num_hidden_layers",
               "mtp_use_dedicated_embeddings"});
  read.finish();
  return c;
}

}  // namespace recurve::qwen3_5
