// Granite 4.0 H (model_type "granitemoehybrid"): blocks of Mamba-2 or of attention over all of a
// session, each with a gated feed-forward layer, which is the shared expert where there are others.
// Source: transformers' modeling_granitemoehybrid.py. It takes the softmax of the logits of the
// chosen experts, which are the shares of all, divided by the sum of those of the chosen.
//
// What a block adds is multiplied with residual_multiplier m there. Here the residual stream is
// divided by m instead: every reader norms it, and RMSNorm(x / m) with eps / m^2 is RMSNorm(x). So
// only the embedding's multiplier and the norms' eps know of it.
#include <fmt/format.h>

#include "model/layers/hybrid.h"
#include "model/load_model.h"
#include "model/weights/convert.h"

namespace recurve {
namespace granite_hybrid {
namespace {

constexpr const char* kName = "granitemoehybrid";
// The grid of prompts; chunk_size is that of the kernel the model was trained with.
constexpr int kChunk = 64;

// Its eps and embedding_scale are those of the residual stream as it is stored here.
struct Config : HybridConfig<SsdMixerConfig> {
  float logits_scale;  // that logits are divided by
};

std::vector<bool> read_layers(ConfigReader& read, const nlohmann::json& config) {
  const int64_t layers = read.required_int("num_hidden_layers", 1, 4096);
  const char* key = read.has("layer_types") ? "layer_types" : "layers_block_type";
  read.ignore({"layer_types", "layers_block_type"});
  if (!read.has(key)) return std::vector<bool>(static_cast<size_t>(layers), false);
  const nlohmann::json& types = config[key];
  if (!types.is_array() || types.size() != static_cast<size_t>(layers)) {
    read.fail(key, fmt::format("a list of {} layers", layers), types.dump());
  }
  std::vector<bool> attends;
  for (const nlohmann::json& type : types) {
    const bool attention = type == "attention" || type == "full_attention";
    if (!attention && type != "mamba" && type != "linear_attention") {
      read.fail(key, "\"mamba\" or \"attention\"", type.dump());
    }
    attends.push_back(attention);
  }
  return attends;
}

SsdMixerConfig read_mamba(ConfigReader& read, const nlohmann::json& config, const Config& c,
                          float eps) {
  SsdMixerConfig m;
  m.D = c.D;
  m.eps = c.eps;
  m.gate_eps = eps;
  m.H = read.optional_int("mamba_n_heads", 128, 1, 1 << 16);
  const int64_t inner = c.D * read.optional_int("mamba_expand", 2, 1, 64);
  if (inner % m.H != 0) {
    read.fail("mamba_n_heads", fmt::format("a divisor of the inner width {}", inner),
              std::to_string(m.H));
  }
  m.P = inner / m.H;
  if (!read.has("mamba_d_head") || config["mamba_d_head"] == "auto") {
    read.ignore({"mamba_d_head"});
  } else {
    read.must_be("mamba_d_head", m.P);
  }
  m.G = read.optional_int("mamba_n_groups", 1, 1, 1 << 16);
  if (m.H % m.G != 0) {
    read.fail("mamba_n_groups", fmt::format("a divisor of mamba_n_heads {}", m.H),
              std::to_string(m.G));
  }
  m.N = read.optional_int("mamba_d_state", 256, 1, 1 << 16);
  m.width = read.optional_int("mamba_d_conv", 4, 2, 256);
  m.conv_bias = read.boolean("mamba_conv_bias", true);
  m.bias = read.boolean("mamba_proj_bias", false);
  m.chunk = kChunk;
  read_time_step_limits(read, config, "time_step_limit", m);
  read.optional_int("mamba_chunk_size", 256, 1, 1 << 20);
  return m;
}

AttentionConfig read_attention(ConfigReader& read, const nlohmann::json& config, const Config& c) {
  AttentionConfig a;
  a.D = c.D;
  a.eps = c.eps;
  read_attention_heads(read, {}, a);
  a.scale = static_cast<float>(read.optional_number("attention_multiplier", 1, 1e-6, 1e6));
  a.bias = read.boolean("attention_bias", false);
  if (read.string_one_of("position_embedding_type", "nope", {"nope", "rope"}) == "rope") {
    a.rotary = read_rotary(read, config, a.head, 1);
  } else {
    read.ignore({"rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor"});
  }
  return a;
}

// The layers, and the widths of what stands between attention and mixers.
void read_feed_forward(ConfigReader& read, const nlohmann::json& config, Config& c) {
  const std::vector<bool> attends = read_layers(read, config);
  const int64_t width = read.optional_int("shared_intermediate_size", 1024, 1, 1 << 20);
  const int64_t E = read.optional_int("num_local_experts", 8, 0, 1 << 16);
  c.layers = with_feed_forward(attends, std::vector<bool>(attends.size(), E > 0));
  if (E == 0) {
    read.ignore({"intermediate_size", "num_experts_per_tok"});
    c.F = width;
    return;
  }
  c.experts = {.D = c.D,
               .E = E,
               .top = read.optional_int("num_experts_per_tok", 2, 1, 1024),
               .F = read.optional_int("intermediate_size", 11008, 1, 1 << 20),
               .shared = width,
               .eps = c.eps};
  if (c.experts.top > E) {
    read.fail("num_experts_per_tok", fmt::format("at most num_local_experts {}", E),
              std::to_string(c.experts.top));
  }
}

Config read_config(const Checkpoint& checkpoint) {
  const nlohmann::json& config = checkpoint.config();
  ConfigReader read(config, checkpoint.config_file());
  Config c{};
  c.D = read.required_int("hidden_size", 1, 1 << 20);
  c.vocab = read.required_int("vocab_size", 1, 1 << 24);
  const double eps = read.optional_number("rms_norm_eps", 1e-6, 0, 1);
  const double m = read.optional_number("residual_multiplier", 1, 1e-6, 1e6);
  c.eps = static_cast<float>(eps / (m * m));
  c.embedding_scale =
      static_cast<float>(read.optional_number("embedding_multiplier", 1, 1e-6, 1e6) / m);
  c.logits_scale = static_cast<float>(read.optional_number("logits_scaling", 1, 1e-6, 1e6));
  c.tied = read.boolean("tie_word_embeddings", false);
  read_feed_forward(read, config, c);
  c.mixer = read_mamba(read, config, c, static_cast<float>(eps));
  c.attention = read_attention(read, config, c);
  c.most_tokens = read.optional_int("max_position_embeddings", 2048, 1, 1 << 30);
  read.string_one_of("hidden_act", "silu", {"silu"});
  read.must_be("normalization_function", "rmsnorm");
  // Of training.
  read.ignore({"attention_dropout", "output_router_logits", "router_aux_loss_coef", "init_method"});
  read.finish();
  return c;
}

using Weights = HybridWeights<SsdMixerWeights>;

// prefix: of the layer's block.
Weights load_layer(const Config& c, HybridKind kind, Checkpoint& checkpoint, Backend& backend,
                   const std::string& prefix, const WeightFormats& formats) {
  const auto norm = [&](const char* name) {
    return VectorWeights::load(backend, checkpoint, prefix + name, {{c.D}});
  };
  Weights layer{.kind = kind};
  if (kind == HybridKind::kAttention) {
    layer.attention = load_attention(c.attention, checkpoint, backend, prefix + "self_attn.",
                                     norm("input_layernorm.weight"), formats);
    return layer;
  }
  if (kind == HybridKind::kMixer) {
    layer.mixer = load_ssd_mixer(c.mixer, checkpoint, backend, prefix + "mamba.",
                                 norm("input_layernorm.weight"), formats);
    return layer;
  }
  const std::string mlp = prefix + "shared_mlp.";
  if (kind == HybridKind::kExperts) {
    const std::string moe = prefix + "block_sparse_moe.";
    layer.experts = load_experts(c.experts, checkpoint, backend,
                                 {.router = moe + "router.layer.weight",
                                  .up = moe + "input_linear.weight",
                                  .down = moe + "output_linear.weight",
                                  .shared_up = {mlp + "input_linear.weight"},
                                  .shared_down = mlp + "output_linear.weight"},
                                 norm("post_attention_layernorm.weight"), formats);
    return layer;
  }
  layer.ffn = {
      .norm = norm("post_attention_layernorm.weight"),
      .up = LinearWeights::load(backend, checkpoint, {{mlp + "input_linear.weight", 2 * c.F}}, c.D,
                                formats.linear),
      .down = LinearWeights::load(backend, checkpoint, {{mlp + "output_linear.weight", c.D}}, c.F,
                                  formats.linear)};
  return layer;
}

// The weights of the last norm, by which logits are scaled.
VectorWeights load_last_norm(const Config& c, Checkpoint& checkpoint, Backend& backend,
                             const std::string& name) {
  std::vector<float> values = host_values(checkpoint.take(name, {c.D}));
  for (float& value : values) value /= c.logits_scale;
  return VectorWeights::from(backend, values);
}

class GraniteHybrid final : public HybridModel<SsdMixerConfig, SsdMixerWeights> {
 public:
  GraniteHybrid(const Config& config, Checkpoint& checkpoint, Backend& backend,
                const LoadOptions& options, const Checkpoint::Progress& progress);
};

GraniteHybrid::GraniteHybrid(const Config& config, Checkpoint& checkpoint, Backend& backend,
                             const LoadOptions& options, const Checkpoint::Progress& progress)
    : HybridModel(config, backend, options, kName) {
  const std::string prefix = checkpoint.detect_prefix({"model.", ""}, "norm.weight");
  tokens_ =
      load_token_weights(backend, checkpoint, prefix, "", c_.vocab, c_.D, c_.tied, options.weights);
  tokens_.norm = load_last_norm(config, checkpoint, backend, prefix + "norm.weight");
  load_layers(prefix, [&](HybridKind kind, const std::string& name) {
    return load_layer(config, kind, checkpoint, backend, name, options.weights);
  });
  finish(checkpoint, backend, progress, checkpoint.config());
}

}  // namespace
}  // namespace granite_hybrid

std::unique_ptr<const Model> load_granite_hybrid(Checkpoint& checkpoint, Backend& backend,
                                                 const LoadOptions& options,
                                                 const Checkpoint::Progress& progress) {
  return std::make_unique<granite_hybrid::GraniteHybrid>(granite_hybrid::read_config(checkpoint),
                                                         checkpoint, backend, options, progress);
}

}  // namespace recurve
