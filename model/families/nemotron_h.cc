// Nemotron-H without experts (model_type "nemotron_h"): each layer is Mamba-2, attention over all
// of a session without positions, or a feed-forward layer without a gate. Source: transformers'
// modeling_nemotron_h.py. One difference: transformers clamps the time step of prompts, but not of
// single steps, at time_step_min, from which dt_bias was drawn before training. The kernels that
// the models were trained with clamp at time_step_limit alone, and so does this file.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/layers/hybrid.h"
#include "model/load_model.h"

namespace recurve {
namespace nemotron_h {
namespace {

constexpr const char* kName = "nemotron_h";
// The grid of prompts; chunk_size is that of the kernel the model was trained with.
constexpr int kChunk = 64;
constexpr const char* kKinds =
    "\"mamba\", \"attention\" or \"mlp\", as experts without a gate are not supported";

struct Config : HybridConfig<SsdMixerConfig> {
  bool mlp_bias;
};

using Weights = HybridWeights<SsdMixerWeights>;

// Of a letter of hybrid_override_pattern, or of a name in a list.
std::optional<HybridKind> kind_of(std::string_view name) {
  if (name == "M" || name == "mamba" || name == "linear_attention") return HybridKind::kMixer;
  if (name == "*" || name == "attention" || name == "full_attention") return HybridKind::kAttention;
  if (name == "-" || name == "mlp") return HybridKind::kFeedForward;
  return std::nullopt;
}

std::vector<std::string> layer_names(ConfigReader& read, const nlohmann::json& config) {
  read.ignore({"layers_block_type", "layer_types", "hybrid_override_pattern"});
  std::vector<std::string> names;
  for (const char* key : {"layers_block_type", "layer_types"}) {
    if (!read.has(key)) continue;
    const nlohmann::json& list = config[key];
    if (!list.is_array()) read.fail(key, "a list of layers", list.dump());
    for (const nlohmann::json& name : list) {
      if (!name.is_string() || name.get<std::string>().size() < 2) {
        read.fail(key, kKinds, name.dump());
      }
      names.push_back(name);
    }
    return names;
  }
  if (!read.has("hybrid_override_pattern")) {
    read.fail("hybrid_override_pattern", "it or layers_block_type", "neither");
  }
  const nlohmann::json& pattern = config["hybrid_override_pattern"];
  if (!pattern.is_string()) read.fail("hybrid_override_pattern", "a string", pattern.dump());
  for (const char letter : pattern.get<std::string>()) names.emplace_back(1, letter);
  return names;
}

std::vector<HybridLayer> read_layers(ConfigReader& read, const nlohmann::json& config) {
  std::vector<HybridLayer> layers;
  const std::vector<std::string> names = layer_names(read, config);
  for (const std::string& name : names) {
    const std::optional<HybridKind> kind = kind_of(name);
    if (!kind) {
      read.fail(name.size() == 1 ? "hybrid_override_pattern" : "layers_block_type", kKinds,
                fmt::format("\"{}\"", name));
    }
    layers.push_back({*kind, static_cast<int>(layers.size())});
  }
  const auto count = static_cast<int64_t>(layers.size());
  if (read.optional_int("num_hidden_layers", count, 1, 4096) != count || count == 0 ||
      count > 4096) {
    read.fail("num_hidden_layers", fmt::format("the {} layers of the list of layers", count),
              read.has("num_hidden_layers") ? config["num_hidden_layers"].dump() : "none");
  }
  if (!std::ranges::count(layers, HybridKind::kMixer, &HybridLayer::kind)) {
    read.fail("hybrid_override_pattern", "at least one layer of Mamba-2", "none");
  }
  return layers;
}

SsdMixerConfig read_mamba(ConfigReader& read, const nlohmann::json& config, const Config& c) {
  SsdMixerConfig m;
  m.D = c.D;
  m.eps = m.gate_eps = c.eps;
  m.H = read.optional_int("mamba_num_heads", 128, 1, 1 << 16);
  m.P = read.optional_int("mamba_head_dim", 64, 1, 1 << 16);
  m.G = read.optional_int({"n_groups", "mamba_n_groups"}, 8, 1, 1 << 16);
  if (m.H % m.G != 0) {
    read.fail("n_groups", fmt::format("a divisor of mamba_num_heads {}", m.H), std::to_string(m.G));
  }
  m.N = read.optional_int("ssm_state_size", 128, 1, 1 << 16);
  m.width = read.optional_int({"conv_kernel", "mamba_d_conv"}, 4, 2, 256);
  m.conv_bias = read.boolean({"use_conv_bias", "mamba_conv_bias"}, true);
  m.bias = read.boolean("use_bias", false);
  m.chunk = kChunk;
  read_time_step_limits(read, config, "time_step_limit", m);
  read.string_one_of("mamba_hidden_act", "silu", {"silu"});
  read.must_be("mamba_proj_bias", false);
  // How dt_bias was drawn, the kernel's chunks, how others store states, and a factor that the
  // heads replace.
  read.ignore({"time_step_min", "time_step_max", "time_step_floor", "time_step_rank", "chunk_size",
               "mamba_chunk_size", "mamba_ssm_cache_dtype", "expand", "mamba_expand",
               "rescale_prenorm_residual", "residual_in_fp32", "use_mamba_kernels"});
  return m;
}

AttentionConfig read_attention(ConfigReader& read, const Config& c) {
  AttentionConfig a;
  a.D = c.D;
  a.eps = c.eps;
  read_attention_heads(read, {.H = 32, .HK = 8, .head = 128}, a);
  a.scale = 1 / std::sqrt(static_cast<float>(a.head));
  read.must_be("attention_bias", false);
  // Its attention has no positions.
  read.ignore({"rope_theta", "rope_parameters", "partial_rotary_factor"});
  return a;
}

Config read_config(const Checkpoint& checkpoint) {
  const nlohmann::json& config = checkpoint.config();
  ConfigReader read(config, checkpoint.config_file());
  Config c{};
  c.D = read.required_int("hidden_size", 1, 1 << 20);
  c.F = read.optional_int("intermediate_size", 21504, 1, 1 << 20);
  c.vocab = read.required_int("vocab_size", 1, 1 << 24);
  c.eps = static_cast<float>(
      read.optional_number({"layer_norm_epsilon", "rms_norm_eps", "norm_eps"}, 1e-5, 0, 1));
  c.tied = read.boolean("tie_word_embeddings", false);
  c.layers = read_layers(read, config);
  c.gated_ffn = false;
  c.mlp_bias = read.boolean("mlp_bias", false);
  c.mixer = read_mamba(read, config, c);
  c.attention = read_attention(read, c);
  c.most_tokens = read.optional_int("max_position_embeddings", 4096, 1, 1 << 30);
  read.string_one_of("mlp_hidden_act", "relu2", {"relu2"});
  // Of training and generation, of experts, of which there are none, and of layers that predict
  // further tokens.
  read.ignore({"attention_dropout", "hidden_dropout", "num_logits_to_keep", "n_routed_experts",
               "num_local_experts", "n_shared_experts", "moe_intermediate_size",
               "moe_shared_expert_intermediate_size", "moe_latent_size",
               "moe_shared_expert_overlap", "num_experts_per_tok", "routed_scaling_factor",
               "n_group", "topk_group", "norm_topk_prob", "output_router_logits",
               "num_nextn_predict_layers", "mtp_layers_block_type", "mtp_hybrid_override_pattern"});
  read.finish();
  return c;
}

// prefix: of the layer.
Weights load_layer(const Config& c, HybridKind kind, Checkpoint& checkpoint, Backend& backend,
                   const std::string& prefix, const WeightFormats& formats) {
  const std::string mixer = prefix + "mixer.";
  VectorWeights norm = VectorWeights::load(backend, checkpoint, prefix + "norm.weight", {{c.D}});
  Weights layer{.kind = kind};
  if (kind == HybridKind::kAttention) {
    layer.attention =
        load_attention(c.attention, checkpoint, backend, mixer, std::move(norm), formats);
    return layer;
  }
  if (kind == HybridKind::kMixer) {
    layer.mixer = load_ssd_mixer(c.mixer, checkpoint, backend, mixer, std::move(norm), formats);
    return layer;
  }
  const auto linear = [&](const std::string& name, int64_t N, int64_t K,
                          const WeightChoice& choice) {
    const std::string bias = c.mlp_bias ? mixer + name + ".bias" : "";
    return LinearWeights::load(backend, checkpoint, {{mixer + name + ".weight", N, bias}}, K,
                               choice);
  };
  layer.ffn = {.norm = std::move(norm),
               .up = linear("up_proj", c.F, c.D, formats.linear),
               .down = linear("down_proj", c.D, c.F, formats.linear.with_sparse_input()),
               .gated = false};
  return layer;
}

class NemotronH final : public HybridModel<SsdMixerConfig, SsdMixerWeights> {
 public:
  NemotronH(const Config& config, Checkpoint& checkpoint, Backend& backend,
            const LoadOptions& options, const Checkpoint::Progress& progress);
};

NemotronH::NemotronH(const Config& config, Checkpoint& checkpoint, Backend& backend,
                     const LoadOptions& options, const Checkpoint::Progress& progress)
    : HybridModel(config, backend, options, kName) {
  // What further tokens are predicted with.
  const int64_t skipped = checkpoint.skip({"mtp."});
  const std::string prefix = checkpoint.detect_prefix({"backbone.", "model.", ""}, "norm_f.weight");
  tokens_ = load_token_weights(backend, checkpoint, prefix, "norm_f.weight", c_.vocab, c_.D,
                               c_.tied, options.weights);
  load_layers(prefix, [&](HybridKind kind, const std::string& name) {
    return load_layer(config, kind, checkpoint, backend, name, options.weights);
  });
  finish(checkpoint, backend, progress, checkpoint.config());
  if (skipped > 0) {
    info_.description += fmt::format("; {} tensors for further tokens are not used", skipped);
  }
}

}  // namespace
}  // namespace nemotron_h

std::unique_ptr<const Model> load_nemotron_h(Checkpoint& checkpoint, Backend& backend,
                                             const LoadOptions& options,
                                             const Checkpoint::Progress& progress) {
  return std::make_unique<nemotron_h::NemotronH>(nemotron_h::read_config(checkpoint), checkpoint,
                                                 backend, options, progress);
}

}  // namespace recurve
