#include "model/families/delta_net_config.h"

#include <fmt/format.h>

#include "model/families/fla_weights.h"

namespace recurve::delta_net {
namespace {

// The grid of prompts; the configs name none.
constexpr int kChunk = 64;

void read_ungated_heads(ConfigReader& read, Config& c) {
  c.H = c.HK = read.optional_int("num_heads", 16, 1, 4096);
  const int64_t qk = fla::scaled(c.D, read.optional_number("expand_k", 1, 1e-3, 64));
  const int64_t v = fla::scaled(c.D, read.optional_number("expand_v", 1, 1e-3, 64));
  if (qk % c.H != 0 || v % c.H != 0 || qk == 0 || v == 0) {
    read.fail("num_heads", fmt::format("a divisor of the key and value widths {} and {}", qk, v),
              std::to_string(c.H));
  }
  c.DK = qk / c.H;
  c.DV = v / c.H;
}

void read_gated_heads(ConfigReader& read, Config& c) {
  c.HK = read.optional_int("num_heads", 6, 1, 4096);
  c.H = read.optional_int("num_v_heads", c.HK, 1, 4096);
  if (c.H % c.HK != 0) {
    read.fail("num_v_heads", fmt::format("a multiple of num_heads {}", c.HK), std::to_string(c.H));
  }
  c.DK = read.optional_int("head_dim", 256, 1, 1 << 16);
  c.DV = fla::scaled(c.DK, read.optional_number("expand_v", 2, 1e-3, 64));
  if (c.DV == 0) read.fail("expand_v", "values of at least one channel a head", "none");
}

void read_ungated(ConfigReader& read, Config& c) {
  c.output_gate = read.boolean("use_gate", false);
  c.gate = Activation::kSilu;
  c.has_beta = read.boolean("use_beta", true);
  const std::string norm = read.string_one_of("qk_norm", "l2", {"l2", "sum"});
  c.norm = norm == "sum" ? DeltaNorm::kSum : DeltaNorm::kLength;
  const std::string f =
      read.string_one_of("qk_activation", "silu", {"silu", "relu", "elu", "identity"});
  c.activation = f == "silu"   ? Activation::kSilu
                 : f == "relu" ? Activation::kRelu
                 : f == "elu"  ? Activation::kEluPlusOne
                               : Activation::kIdentity;
  read.ignore({"use_output_norm"});  // fla's layer always has the norm
}

void read_gated(ConfigReader& read, Config& c) {
  c.output_gate = read.boolean("use_gate", true);
  c.has_beta = true;
  c.norm = DeltaNorm::kLength;
  c.activation = Activation::kSilu;
  const std::string gate =
      read.string_one_of("output_gate_activation", "swish", {"swish", "silu", "sigmoid"});
  c.gate = gate == "sigmoid" ? Activation::kSigmoid : Activation::kSilu;
}

void read_convolution(ConfigReader& read, Config& c) {
  if (!read.boolean("use_short_conv", true)) {
    read.ignore({"conv_size", "conv_bias"});
    return;
  }
  c.width = read.optional_int("conv_size", 4, 2, 256);
  read.must_be("conv_bias", false);
}

}  // namespace

Config read_config(const Checkpoint& checkpoint) {
  ConfigReader read(checkpoint.config(), checkpoint.config_file());
  Config c{};
  c.type = checkpoint.config()["model_type"].get<std::string>();
  c.gated = c.type == "gated_deltanet";
  c.D = read.required_int("hidden_size", 1, 1 << 20);
  c.blocks = read.required_int("num_hidden_layers", 1, 4096);
  c.vocab = read.required_int("vocab_size", 1, 1 << 24);
  c.eps = static_cast<float>(read.optional_number({"norm_eps", "rms_norm_eps"}, 1e-6, 0, 1));
  c.F = fla::read_ffn_size(read, c.D, 4);
  c.tied = read.boolean("tie_word_embeddings", false);
  c.beta_scale = read.boolean("allow_neg_eigval", false) ? 2 : 1;
  c.chunk = kChunk;
  if (c.gated) {
    read_gated_heads(read, c);
    read_gated(read, c);
  } else {
    read_ungated_heads(read, c);
    read_ungated(read, c);
  }
  read_convolution(read, c);
  read.string_one_of("hidden_act", "swish", {"swish", "silu"});
  read.must_be("attn", nullptr);                // layers of attention among the others
  read.must_be("attnres_block_size", nullptr);  // residuals that are attended to
  fla::ignore_ways(read);
  read.finish();
  return c;
}

}  // namespace recurve::delta_net
