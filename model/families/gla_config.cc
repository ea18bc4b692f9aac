#include "model/families/gla_config.h"

#include <fmt/format.h>

#include <limits>

#include "model/families/fla_weights.h"

namespace recurve::gla_family {
namespace {

constexpr std::pair<const char*, Kind> kKinds[] = {{"gla", Kind::kGla},
                                                   {"simple_gla", Kind::kSimpleGla},
                                                   {"retnet", Kind::kRetnet},
                                                   {"linear_attn", Kind::kLinearAttention},
                                                   {"hgrn2", Kind::kHgrn2}};

// The grid of prompts; the configs name none.
constexpr int kChunk = 64;

void read_heads(ConfigReader& read, Config& c) {
  if (c.kind == Kind::kHgrn2) {
    // num_heads counts only where expand_ratio is null: fla's default of expand_ratio is 128.
    const int64_t heads = read.optional_int("num_heads", 0, 1, 4096);
    const bool by_heads = heads > 0 && read.is_null("expand_ratio");
    const int64_t ratio =
        read.optional_int("expand_ratio", by_heads ? c.D / heads : 128, 1, 1 << 16);
    c.H = c.D / ratio;
    if (c.H * ratio != c.D || (heads > 0 && heads != c.H)) {
      read.fail("expand_ratio", "a divisor of hidden_size that leaves num_heads",
                std::to_string(ratio));
    }
    c.DK = c.DV = ratio;
    c.KV = c.H;
    return;
  }
  const bool retnet = c.kind == Kind::kRetnet;
  c.H = read.optional_int("num_heads", retnet ? 8 : 4, 1, 4096);
  const int64_t qk = fla::scaled(
      c.D, read.optional_number("expand_k", c.kind == Kind::kGla ? 0.5 : 1.0, 1e-3, 64));
  const int64_t v =
      fla::scaled(c.D, read.optional_number("expand_v", retnet ? 2.0 : 1.0, 1e-3, 64));
  if (qk % c.H != 0 || v % c.H != 0 || qk == 0 || v == 0) {
    read.fail("num_heads", fmt::format("a divisor of the key and value widths {} and {}", qk, v),
              std::to_string(c.H));
  }
  c.DK = qk / c.H;
  c.DV = v / c.H;
  if (retnet && c.DK % 2 != 0) {
    read.fail("num_heads", "an even number of channels a head, for the rotary embedding",
              std::to_string(c.DK));
  }
  c.KV = read.optional_int("num_kv_heads", c.H, 1, c.H);
  if (c.H % c.KV != 0) {
    read.fail("num_kv_heads", fmt::format("a divisor of num_heads {}", c.H), std::to_string(c.KV));
  }
}

void read_convolution(ConfigReader& read, Config& c) {
  // fla gives these layers nothing of a convolution from the config.
  if (c.kind == Kind::kLinearAttention || c.kind == Kind::kRetnet) {
    read.ignore({"use_short_conv", "conv_size", "share_conv_kernel", "conv_bias"});
    return;
  }
  if (!read.boolean("use_short_conv", c.kind == Kind::kSimpleGla)) {
    read.ignore({"conv_size", "share_conv_kernel", "conv_bias"});  // of a convolution
    return;
  }
  c.width = read.optional_int("conv_size", 4, 2, 256);
  read.must_be("share_conv_kernel", false);
  read.must_be("conv_bias", false);
}

// Reads the name that transformers has for a function of single values.
Activation read_activation(ConfigReader& read) {
  const std::string map = read.string_one_of(
      "feature_map", "", {"identity", "relu", "silu", "swish", "sigmoid", "tanh"});
  return map == "relu"                     ? Activation::kRelu
         : map == "silu" || map == "swish" ? Activation::kSilu
         : map == "sigmoid"                ? Activation::kSigmoid
         : map == "tanh"                   ? Activation::kTanh
                                           : Activation::kIdentity;
}

void read_linear_attention(ConfigReader& read, Config& c) {
  struct Map {
    const char* name;
    Activation activation;
    FeatureMap map;
    bool weights;
  };
  static constexpr Map kMaps[] = {
      {"identity", Activation::kIdentity, FeatureMap::kNone, false},
      {"relu", Activation::kRelu, FeatureMap::kNone, false},
      {"elu", Activation::kEluPlusOne, FeatureMap::kNone, false},
      {"dpfp", Activation::kIdentity, FeatureMap::kDpfp, false},
      {"t2r", Activation::kRelu, FeatureMap::kNone, true},
      {"hedgehog", Activation::kIdentity, FeatureMap::kSoftmax, true},
      {"elementwise_product", Activation::kIdentity, FeatureMap::kProduct, true}};
  std::vector<std::string> names;
  for (const Map& map : kMaps) names.push_back(map.name);
  const std::string name = read.string_one_of("feature_map", "elementwise_product", names);
  for (const Map& map : kMaps) {
    if (name != map.name) continue;
    c.activation = map.activation;
    c.feature_map = map.map;
    c.map_weights = map.weights;
  }
  c.map_tied = read.boolean("tie_feature_map_qk", false);
  c.norm_q = read.boolean("norm_q", false);
  c.norm_k = read.boolean("norm_k", false);
  c.normaliser = read.boolean("norm_feature_map", false);
  // Arguments of the layer that fla gives it no value of a config for: the norm is always there,
  // and norm_feature_map decides about the other.
  read.ignore({"output_norm", "do_feature_map_norm"});
}

// What only one or another of the kinds has.
void read_kind(ConfigReader& read, Config& c) {
  c.output_gate = c.kind == Kind::kGla || c.kind == Kind::kSimpleGla || c.kind == Kind::kRetnet;
  c.head_norm = c.kind != Kind::kHgrn2;
  c.gate_floor = -std::numeric_limits<float>::infinity();
  if (c.kind == Kind::kGla || c.kind == Kind::kSimpleGla) {
    constexpr double kDivisor = 16;
    c.gate_divisor =
        static_cast<float>(read.optional_number("gate_logit_normalizer", kDivisor, 1e-3, 1e6));
    // fla's GLA model does not give its layers the config's.
    if (c.kind == Kind::kGla) read.must_be("gate_logit_normalizer", kDivisor);
    read.must_be("use_gk", true);
    read.must_be("use_gv", false);
  }
  if (c.kind == Kind::kGla) {
    c.gate_rank = read.optional_int("gate_low_rank_dim", 16, 1, 1 << 16);
    if (read.has("clamp_min")) {
      c.gate_floor = static_cast<float>(read.required_number("clamp_min", -1e30, 0));
    }
  }
  if (c.kind == Kind::kGla || c.kind == Kind::kRetnet) {
    c.output_gate = read.boolean("use_output_gate", true);
  }
  if (c.kind == Kind::kLinearAttention) {
    read_linear_attention(read, c);
  } else if (c.kind == Kind::kHgrn2) {
    c.lower_bound = read.boolean("use_lower_bound", true);
  } else {
    c.activation = read_activation(read);
  }
}

}  // namespace

Config read_config(const Checkpoint& checkpoint) {
  ConfigReader read(checkpoint.config(), checkpoint.config_file());
  Config c{};
  c.type = checkpoint.config()["model_type"].get<std::string>();
  for (const auto& [name, kind] : kKinds) {
    if (c.type == name) c.kind = kind;
  }
  c.D = read.required_int("hidden_size", 1, 1 << 20);
  c.blocks = read.required_int("num_hidden_layers", 1, 4096);
  c.vocab = read.required_int("vocab_size", 1, 1 << 24);
  c.eps = static_cast<float>(read.optional_number({"norm_eps", "rms_norm_eps"}, 1e-6, 0, 1));
  c.F = fla::read_ffn_size(read, c.D, c.kind == Kind::kRetnet ? 2 : 4);
  c.tied = read.boolean("tie_word_embeddings", false);
  c.chunk = kChunk;
  read_heads(read, c);
  read_convolution(read, c);
  read_kind(read, c);
  read.string_one_of("hidden_act", "swish", {"swish", "silu"});
  read.string_one_of("gate_fn", "swish", {"swish", "silu"});
  read.must_be("elementwise_affine", true);
  read.must_be("attn", nullptr);  // layers of attention among the others
  fla::ignore_ways(read);
  read.finish();
  return c;
}

}  // namespace recurve::gla_family
