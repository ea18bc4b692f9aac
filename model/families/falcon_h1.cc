// Falcon-H1 (model_type "falcon_h1"): in each block Mamba-2 and attention in parallel, then a gated
// feed-forward layer. Source: transformers' modeling_falcon_h1.py. One difference: transformers
// applies time_step_limit to prompts alone, and this file to single steps too.
//
// The config has multipliers of the embedding, the logits, keys, and of what each layer and each
// part of in_proj reads or adds. No matrix is multiplied with them, as that would round its weights
// once more. With m for a multiplier, s = m_down / m_gate and a = m_attention_out / s:
//
//   residual stream    is divided by s: m_embedding / s, and eps / s^2 in its norms
//   norm of the mixer  times m_ssm_in m_z; in the convolution x, B and C times m_x / m_z, m_B / m_z
//                      and m_C / m_z; dt times m_dt / m_z, an op unless that is 1; what out_proj
//                      reads times m_ssm_out / s
//   norm of attention  times m_attention_in a, and with it queries, keys, values and what is added;
//                      the scale of scores times m_key / a^2
//   norm of the MLP    times m_gate; what is added is then m_gate / m_down = 1 / s of the source's
//   last norm          times m_lm_head
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "model/layers/hybrid.h"
#include "model/load_model.h"
#include "model/weights/convert.h"

namespace recurve {
namespace falcon_h1 {
namespace {

constexpr const char* kName = "falcon_h1";
// The grid of prompts; mamba_chunk_size is that of the kernel the model was trained with.
constexpr int kChunk = 64;
constexpr double kLeast = 1e-6, kMost = 1e6;  // of multipliers

// What the weights of norms are multiplied with. Its eps and embedding_scale are those of the
// residual stream as it is stored here.
struct Config : HybridConfig<SsdMixerConfig> {
  float mixer_norm, attention_norm, ffn_norm, last_norm;
};

// The multipliers of the config.
struct Multipliers {
  double embedding, logits, key, attention_in, attention_out, ssm_in, ssm_out;
  double z, x, B, C, dt;
  double gate, down;

  double stream() const { return down / gate; }                  // s above
  double attention() const { return attention_out / stream(); }  // a above
};

// A list of so many multipliers, all 1 if the config has none.
std::vector<double> read_list(ConfigReader& read, const nlohmann::json& config, const char* key,
                              size_t count) {
  read.ignore({key});
  if (!read.has(key)) return std::vector<double>(count, 1);
  const nlohmann::json& list = config[key];
  const auto fits = [](const nlohmann::json& value) {
    return value.is_number() && value.get<double>() >= kLeast && value.get<double>() <= kMost;
  };
  if (!list.is_array() || list.size() != count || !std::ranges::all_of(list, fits)) {
    read.fail(key, fmt::format("{} numbers in [{}, {}]", count, kLeast, kMost), list.dump());
  }
  return list.get<std::vector<double>>();
}

Multipliers read_multipliers(ConfigReader& read, const nlohmann::json& config) {
  const auto number = [&](const char* key) { return read.optional_number(key, 1, kLeast, kMost); };
  const std::vector<double> ssm = read_list(read, config, "ssm_multipliers", 5);
  const std::vector<double> mlp = read_list(read, config, "mlp_multipliers", 2);
  return {.embedding = number("embedding_multiplier"),
          .logits = number("lm_head_multiplier"),
          .key = number("key_multiplier"),
          .attention_in = number("attention_in_multiplier"),
          .attention_out = number("attention_out_multiplier"),
          .ssm_in = number("ssm_in_multiplier"),
          .ssm_out = number("ssm_out_multiplier"),
          .z = ssm[0],
          .x = ssm[1],
          .B = ssm[2],
          .C = ssm[3],
          .dt = ssm[4],
          .gate = mlp[0],
          .down = mlp[1]};
}

// The sizes of heads: mamba_d_ssm channels in all, or a multiple of hidden_size where it is null.
void read_mamba_heads(ConfigReader& read, const nlohmann::json& config, SsdMixerConfig& m) {
  const int64_t expanded = m.D * read.optional_int("mamba_expand", 2, 1, 64);
  const int64_t inner = read.optional_int("mamba_d_ssm", 1024, 1, 1 << 26);
  const int64_t channels = read.is_null("mamba_d_ssm") ? expanded : inner;
  m.H = read.optional_int("mamba_n_heads", 128, 1, 1 << 16);
  if (channels % m.H != 0) {
    read.fail("mamba_n_heads", fmt::format("a divisor of the inner width {}", channels),
              std::to_string(m.H));
  }
  m.P = channels / m.H;
  if (read.has("mamba_d_head") && config["mamba_d_head"] != "auto") {
    read.must_be("mamba_d_head", m.P);
  } else {
    read.ignore({"mamba_d_head"});
  }
  m.G = read.optional_int("mamba_n_groups", 1, 1, 1 << 16);
  if (m.H % m.G != 0) {
    read.fail("mamba_n_groups", fmt::format("a divisor of mamba_n_heads {}", m.H),
              std::to_string(m.G));
  }
}

SsdMixerConfig read_mamba(ConfigReader& read, const nlohmann::json& config, const Config& c,
                          float eps, const Multipliers& by) {
  SsdMixerConfig m;
  m.D = c.D;
  m.eps = c.eps;
  m.gate_eps = eps;
  read_mamba_heads(read, config, m);
  m.N = read.optional_int("mamba_d_state", 256, 1, 1 << 16);
  m.width = read.optional_int("mamba_d_conv", 4, 2, 256);
  m.conv_bias = read.boolean("mamba_conv_bias", true);
  m.gate_norm = read.boolean("mamba_rms_norm", false);
  if (read.boolean("mamba_norm_before_gate", true) && m.gate_norm) {
    read.fail("mamba_norm_before_gate", "false where mamba_rms_norm is true", "true");
  }
  m.x_scale = static_cast<float>(by.x / by.z);
  m.B_scale = static_cast<float>(by.B / by.z);
  m.C_scale = static_cast<float>(by.C / by.z);
  m.dt_scale = static_cast<float>(by.dt / by.z);
  m.out_scale = static_cast<float>(by.ssm_out / by.stream());
  m.chunk = kChunk;
  read_time_step_limits(read, config, "time_step_limit", m);
  read.must_be("mamba_proj_bias", false);
  read.must_be("projectors_bias", false);
  // The kernel's chunks, and how dt_bias was drawn.
  read.ignore(
      {"mamba_chunk_size", "time_step_min", "time_step_max", "time_step_floor", "time_step_rank"});
  return m;
}

AttentionConfig read_attention(ConfigReader& read, const nlohmann::json& config, const Config& c,
                               const Multipliers& by) {
  AttentionConfig a;
  a.D = c.D;
  a.eps = c.eps;
  AttentionHeads defaults{.H = 32, .HK = 8};
  if (read.has("head_dim")) defaults.head = 1;  // the config has it, and any is possible
  read_attention_heads(read, defaults, a);
  const double scores = by.key / (by.attention() * by.attention());
  a.scale = static_cast<float>(scores / std::sqrt(static_cast<double>(a.head)));
  a.rotary = read_rotary(read, config, a.head, 1);
  read.must_be("attention_bias", false);
  return a;
}

std::vector<HybridLayer> read_layers(ConfigReader& read, const nlohmann::json& config) {
  const int64_t blocks = read.optional_int("num_hidden_layers", 32, 1, 4096);
  read.ignore({"layer_types", "layers_block_type"});
  for (const char* key : {"layer_types", "layers_block_type"}) {
    const std::vector<std::string> all(static_cast<size_t>(blocks), "hybrid");
    if (read.has(key) && config[key] != nlohmann::json(all)) {
      read.fail(key, fmt::format("\"hybrid\" for each of {} layers", blocks), config[key].dump());
    }
  }
  std::vector<HybridLayer> layers;
  for (int block = 0; block < blocks; ++block) {
    layers.push_back({HybridKind::kParallel, block});
    layers.push_back({HybridKind::kFeedForward, block});
  }
  return layers;
}

Config read_config(const Checkpoint& checkpoint) {
  const nlohmann::json& config = checkpoint.config();
  ConfigReader read(config, checkpoint.config_file());
  const Multipliers by = read_multipliers(read, config);
  Config c{};
  c.D = read.required_int("hidden_size", 1, 1 << 20);
  c.F = read.optional_int("intermediate_size", 14336, 1, 1 << 20);
  c.vocab = read.required_int("vocab_size", 1, 1 << 24);
  const double eps = read.optional_number("rms_norm_eps", 1e-5, 0, 1);
  c.eps = static_cast<float>(eps / (by.stream() * by.stream()));
  c.embedding_scale = static_cast<float>(by.embedding / by.stream());
  c.mixer_norm = static_cast<float>(by.ssm_in * by.z);
  c.attention_norm = static_cast<float>(by.attention_in * by.attention());
  c.ffn_norm = static_cast<float>(by.gate);
  c.last_norm = static_cast<float>(by.logits);
  c.tied = read.boolean("tie_word_embeddings", false);
  c.layers = read_layers(read, config);
  c.mixer = read_mamba(read, config, c, static_cast<float>(eps), by);
  c.attention = read_attention(read, config, c, by);
  c.most_tokens = read.optional_int("max_position_embeddings", 8192, 1, 1 << 30);
  read.string_one_of("hidden_act", "silu", {"silu"});
  read.must_be("mlp_bias", false);
  read.must_be("mamba_use_mlp", true);
  // Of training and generation, and a factor that intermediate_size replaces.
  read.ignore({"attention_dropout", "num_logits_to_keep", "mlp_expansion_factor"});
  read.finish();
  return c;
}

using Weights = HybridWeights<SsdMixerWeights>;

// The weights of a norm, each multiplied with a scale: one result for each of the scales.
std::vector<VectorWeights> load_norms(int64_t D, Checkpoint& checkpoint, Backend& backend,
                                      const std::string& name, const std::vector<float>& scales) {
  const std::vector<float> values = host_values(checkpoint.take(name, {D}));
  std::vector<VectorWeights> norms;
  for (const float scale : scales) {
    std::vector<float> scaled = values;
    for (float& value : scaled) value *= scale;
    norms.push_back(VectorWeights::from(backend, scaled));
  }
  return norms;
}

Weights load_parallel(const Config& c, Checkpoint& checkpoint, Backend& backend,
                      const std::string& prefix, const WeightFormats& formats) {
  std::vector<VectorWeights> norms =
      load_norms(c.D, checkpoint, backend, prefix + "input_layernorm.weight",
                 {c.mixer_norm, c.attention_norm});
  return {.kind = HybridKind::kParallel,
          .mixer = load_ssd_mixer(c.mixer, checkpoint, backend, prefix + "mamba.",
                                  std::move(norms[0]), formats),
          .attention = load_attention(c.attention, checkpoint, backend, prefix + "self_attn.",
                                      std::move(norms[1]), formats)};
}

Weights load_feed_forward(const Config& c, Checkpoint& checkpoint, Backend& backend,
                          const std::string& prefix, const WeightFormats& formats) {
  const std::string ffn = prefix + "feed_forward.";
  std::vector<VectorWeights> norms =
      load_norms(c.D, checkpoint, backend, prefix + "pre_ff_layernorm.weight", {c.ffn_norm});
  return {
      .kind = HybridKind::kFeedForward,
      .ffn = {
          .norm = std::move(norms[0]),
          .up = LinearWeights::load(
              backend, checkpoint, {{ffn + "gate_proj.weight", c.F}, {ffn + "up_proj.weight", c.F}},
              c.D, formats.linear),
          .down = LinearWeights::load(backend, checkpoint, {{ffn + "down_proj.weight", c.D}}, c.F,
                                      formats.linear)}};
}

class FalconH1 final : public HybridModel<SsdMixerConfig, SsdMixerWeights> {
 public:
  FalconH1(const Config& config, Checkpoint& checkpoint, Backend& backend,
           const LoadOptions& options, const Checkpoint::Progress& progress);
};

FalconH1::FalconH1(const Config& config, Checkpoint& checkpoint, Backend& backend,
                   const LoadOptions& options, const Checkpoint::Progress& progress)
    : HybridModel(config, backend, options, kName) {
  const std::string prefix = checkpoint.detect_prefix({"model.", ""}, "final_layernorm.weight");
  tokens_ =
      load_token_weights(backend, checkpoint, prefix, "", c_.vocab, c_.D, c_.tied, options.weights);
  tokens_.norm = std::move(load_norms(c_.D, checkpoint, backend, prefix + "final_layernorm.weight",
                                      {config.last_norm})[0]);
  load_layers(prefix, [&](HybridKind kind, const std::string& name) {
    const auto load = kind == HybridKind::kParallel ? load_parallel : load_feed_forward;
    return load(config, checkpoint, backend, name, options.weights);
  });
  finish(checkpoint, backend, progress, checkpoint.config());
}

}  // namespace
}  // namespace falcon_h1

std::unique_ptr<const Model> load_falcon_h1(Checkpoint& checkpoint, Backend& backend,
                                            const LoadOptions& options,
                                            const Checkpoint::Progress& progress) {
  return std::make_unique<falcon_h1::FalconH1>(falcon_h1::read_config(checkpoint), checkpoint,
                                               backend, options, progress);
}

}  // namespace recurve
