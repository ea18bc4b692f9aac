// Granite 4.0 H without experts (model_type "granitemoehybrid" with num_local_experts 0): blocks of
// Mamba-2 or of attention over all of a session, each with a gated feed-forward layer. Source:
// transformers' modeling_granitemoehybrid.py.
//
// What a block adds is multiplied with residual_multiplier m there. Here the residual stream is
// divided by m instead: every reader norms it, and RMSNorm(x / m) with eps / m^2 is RMSNorm(x). So
// only the embedding's multiplier and the norms' eps know of it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/layers/attention.h"
#include "model/layers/gated_ffn.h"
#include "model/layers/head.h"
#include "model/layers/required_ops.h"
#include "model/layers/ssd_mixer.h"
#include "model/load_model.h"
#include "model/special_ids.h"
#include "model/weights/convert.h"

namespace recurve {
namespace granite_hybrid {
namespace {

constexpr const char* kName = "granitemoehybrid";
// The grid of prompts; chunk_size is that of the kernel the model was trained with.
constexpr int kChunk = 64;

struct Config {
  int64_t D, F, vocab;
  float eps;              // of norms of the residual stream, as it is stored here
  float embedding_scale;  // into the residual stream as it is stored here
  float logits_scale;     // that logits are divided by
  bool tied;
  std::vector<bool> attends;  // of each block: whether it is attention, or else Mamba-2
  int64_t most_tokens;        // of a session
  SsdMixerConfig mamba;
  AttentionConfig attention;

  int64_t blocks() const { return static_cast<int64_t>(attends.size()); }
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
  a.H = read.required_int("num_attention_heads", 1, 4096);
  if (c.D % a.H != 0) {
    read.fail("num_attention_heads", fmt::format("a divisor of hidden_size {}", c.D),
              std::to_string(a.H));
  }
  a.HK = read.optional_int("num_key_value_heads", a.H, 1, a.H);
  if (a.H % a.HK != 0) {
    read.fail("num_key_value_heads", fmt::format("a divisor of num_attention_heads {}", a.H),
              std::to_string(a.HK));
  }
  a.head = c.D / a.H;
  read.must_be("head_dim", a.head);
  a.scale = static_cast<float>(read.optional_number("attention_multiplier", 1, 1e-6, 1e6));
  a.bias = read.boolean("attention_bias", false);
  if (read.string_one_of("position_embedding_type", "nope", {"nope", "rope"}) == "rope") {
    a.rotary = read_rotary(read, config, a.head, 1);
  } else {
    read.ignore({"rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor"});
  }
  return a;
}

Config read_config(const Checkpoint& checkpoint) {
  const nlohmann::json& config = checkpoint.config();
  ConfigReader read(config, checkpoint.config_file());
  Config c{};
  if (const int64_t experts = read.optional_int("num_local_experts", 8, 0, 1 << 20); experts > 0) {
    read.fail("num_local_experts", "0, as experts are not supported yet", std::to_string(experts));
  }
  c.D = read.required_int("hidden_size", 1, 1 << 20);
  c.F = read.optional_int("shared_intermediate_size", 1024, 1, 1 << 20);
  c.vocab = read.required_int("vocab_size", 1, 1 << 24);
  const double eps = read.optional_number("rms_norm_eps", 1e-6, 0, 1);
  const double m = read.optional_number("residual_multiplier", 1, 1e-6, 1e6);
  c.eps = static_cast<float>(eps / (m * m));
  c.embedding_scale =
      static_cast<float>(read.optional_number("embedding_multiplier", 1, 1e-6, 1e6) / m);
  c.logits_scale = static_cast<float>(read.optional_number("logits_scaling", 1, 1e-6, 1e6));
  c.tied = read.boolean("tie_word_embeddings", false);
  c.attends = read_layers(read, config);
  c.mamba = read_mamba(read, config, c, static_cast<float>(eps));
  c.attention = read_attention(read, config, c);
  c.most_tokens = read.optional_int("max_position_embeddings", 2048, 1, 1 << 30);
  read.string_one_of("hidden_act", "silu", {"silu"});
  read.must_be("normalization_function", "rmsnorm");
  // Of training and of experts, of which there are none.
  read.ignore({"attention_dropout", "intermediate_size", "num_experts_per_tok",
               "output_router_logits", "router_aux_loss_coef", "init_method"});
  read.finish();
  return c;
}

struct Block {
  bool attends;
  SsdMixerWeights mamba;
  AttentionWeights attention;
  GatedFfn ffn;

  Residual::Reader reader() const { return attends ? attention.reader() : mamba.reader(); }
};

Block load_block(const Config& c, Checkpoint& checkpoint, Backend& backend,
                 const std::string& prefix, bool attends, const WeightFormats& formats) {
  const auto norm = [&](const char* name) {
    return VectorWeights::load(backend, checkpoint, prefix + name, {{c.D}});
  };
  Block block{.attends = attends, .mamba = {}, .attention = {}, .ffn = {}};
  if (attends) {
    block.attention = load_attention(c.attention, checkpoint, backend, prefix + "self_attn.",
                                     norm("input_layernorm.weight"), formats);
  } else {
    block.mamba = load_ssd_mixer(c.mamba, checkpoint, backend, prefix + "mamba.",
                                 norm("input_layernorm.weight"), formats);
  }
  const std::string mlp = prefix + "shared_mlp.";
  block.ffn = {
      .norm = norm("post_attention_layernorm.weight"),
      .gate_up = LinearWeights::load(backend, checkpoint, {{mlp + "input_linear.weight", 2 * c.F}},
                                     c.D, formats.linear),
      .down = LinearWeights::load(backend, checkpoint, {{mlp + "output_linear.weight", c.D}}, c.F,
                                  formats.linear)};
  return block;
}

// The weights of the last norm, by which logits are scaled.
VectorWeights load_last_norm(const Config& c, Checkpoint& checkpoint, Backend& backend,
                             const std::string& name) {
  std::vector<float> values = host_values(checkpoint.take(name, {c.D}));
  for (float& value : values) value /= c.logits_scale;
  return VectorWeights::from(backend, values);
}

class GraniteHybrid final : public Model {
 public:
  GraniteHybrid(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
                const Checkpoint::Progress& progress);

  const ModelInfo& info() const override { return info_; }
  StateLayout state_layout() const override;
  size_t arena_bytes(const StepLimits& limits) const override;
  void forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
               float* logits) const override;

 private:
  std::vector<int64_t> widths() const;  // of scratch rows: a mixer's, then the feed-forward's
  void fill_info(const Checkpoint& checkpoint);
  void embed(const StepBatch& batch, float* x, Stream& stream) const;

  Config c_;
  const Kernels& kernels_;
  TokenWeights tokens_;
  std::vector<Block> blocks_;
  VectorWeights frequency_;  // (rotary / 2), or empty
  ModelInfo info_;
};

GraniteHybrid::GraniteHybrid(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
                             const Checkpoint::Progress& progress)
    : c_(read_config(checkpoint)), kernels_(backend.kernels()) {
  if (options.chunk > 0) c_.mamba.chunk = options.chunk;
  c_.mamba.state = options.state;
  c_.attention.kv = options.kv;
  check_ssd_mixer(c_.mamba, backend, kName);
  check_attention(c_.attention, backend, kName);
  require_ops(backend, kName, {"activation"});
  const std::string prefix = checkpoint.detect_prefix({"model.", ""}, "norm.weight");
  tokens_ =
      load_token_weights(backend, checkpoint, prefix, "", c_.vocab, c_.D, c_.tied, options.weights);
  tokens_.norm = load_last_norm(c_, checkpoint, backend, prefix + "norm.weight");
  for (int64_t b = 0; b < c_.blocks(); ++b) {
    blocks_.push_back(load_block(c_, checkpoint, backend, fmt::format("{}layers.{}.", prefix, b),
                                 c_.attends[static_cast<size_t>(b)], options.weights));
  }
  if (c_.attention.rotary.channels > 0) frequency_ = c_.attention.rotary.frequencies(backend);
  checkpoint.finish(progress);
  fill_info(checkpoint);
}

void GraniteHybrid::fill_info(const Checkpoint& checkpoint) {
  WeightTally tally;
  tally.add(tokens_);
  for (const Block& block : blocks_) {
    if (block.attends) {
      add_to(tally, block.attention);
    } else {
      add_to(tally, block.mamba);
    }
    add_to(tally, block.ffn);
  }
  info_.parameters = tally.parameters;
  info_.weight_bytes = tally.bytes;
  info_.family = kName;
  info_.description =
      fmt::format("{} blocks, {} of them attention, width {}, {} heads of {} x {}, feed-forward {}",
                  c_.blocks(), std::ranges::count(c_.attends, true), c_.D, c_.mamba.H, c_.mamba.P,
                  c_.mamba.N, c_.F);
  info_.head = tokens_.head_source;
  info_.vocab = c_.vocab;
  info_.chunk = c_.mamba.chunk;
  info_.most_tokens = c_.most_tokens;
  const SpecialIds ids = read_special_ids(checkpoint);
  info_.bos = ids.bos;
  info_.eos = ids.eos;
  info_.force_bos = ids.force_bos.value_or(false);
}

// Two arrays a block, and after them how far the session has come.
StateLayout GraniteHybrid::state_layout() const {
  StateLayout layout;
  for (int b = 0; b < static_cast<int>(c_.blocks()); ++b) {
    if (c_.attends[static_cast<size_t>(b)]) {
      add_arrays(c_.attention, b, layout);
    } else {
      add_arrays(c_.mamba, b, layout);
    }
  }
  layout.arrays.push_back(
      {.name = "position", .dtype = DType::kI32, .shape = {1}, .values = StateValues::kPosition});
  return layout;
}

std::vector<int64_t> GraniteHybrid::widths() const {
  const std::vector<int64_t> mamba = SsdMixerScratch::widths(c_.mamba);
  std::vector<int64_t> widths = AttentionScratch::widths(c_.attention);
  for (size_t i = 0; i < mamba.size(); ++i) widths[i] = std::max(widths[i], mamba[i]);
  widths.push_back(c_.F);
  widths.push_back(1);  // positions
  return widths;
}

size_t GraniteHybrid::arena_bytes(const StepLimits& limits) const {
  const auto bytes_for = [](int count, int64_t width) {
    return Arena::bytes_for(static_cast<size_t>(count) * static_cast<size_t>(width));
  };
  size_t bytes = Residual::bytes_for(kernels_, limits.rows, c_.D) + bytes_for(limits.logits, c_.D);
  for (const int64_t width : widths()) bytes += bytes_for(limits.rows, width);
  return bytes;
}

void GraniteHybrid::embed(const StepBatch& batch, float* x, Stream& stream) const {
  const int D = static_cast<int>(c_.D);
  kernels_.embed(
      {.rows = batch.seqs.rows, .E = tokens_.embedding.matrix(), .token = batch.tokens, .x = x},
      stream);
  kernels_.activation({.rows = batch.seqs.rows,
                       .width = D,
                       .f = Activation::kIdentity,
                       .scale = c_.embedding_scale,
                       .floor = -std::numeric_limits<float>::infinity(),
                       .x_stride = D,
                       .y_stride = D,
                       .x = x,
                       .y = x},
                      stream);
}

void GraniteHybrid::forward(const StepBatch& batch, const StatePool& states, Arena& arena,
                            Stream& stream, float* logits) const {
  const int rows = batch.seqs.rows;
  arena.reset();
  Residual x(kernels_, arena, rows, c_.D);
  std::vector<float*> a;
  for (const int64_t width : widths()) {
    a.push_back(arena.floats(static_cast<size_t>(rows) * static_cast<size_t>(width)));
  }
  static_assert(sizeof(float) == sizeof(int32_t));
  auto* const position = reinterpret_cast<int32_t*>(a.back());
  float* const hidden = a[a.size() - 2];
  float* const picked =
      arena.floats(static_cast<size_t>(batch.num_logits) * static_cast<size_t>(c_.D));
  const SsdMixerScratch mamba{a[0], a[1], a[2]};
  const AttentionScratch attending{a[0], a[1], a[2], a[3], position, frequency_.data()};
  const Head last{.norm = &tokens_.norm, .W = tokens_.head_matrix(), .eps = c_.eps, .soft_cap = 0};
  embed(batch, x.x(), stream);
  kernels_.positions({.seqs = batch.seqs,
                      .count = states.array<int32_t>(2 * blocks_.size()),
                      .position = position},
                     stream);
  for (size_t b = 0; b < blocks_.size(); ++b) {
    const Block& block = blocks_[b];
    const Residual::Reader ffn = block.ffn.reader();
    if (block.attends) {
      attention(c_.attention, block.attention, batch.seqs,
                {states.paged(2 * b), states.paged(2 * b + 1)}, attending, x, ffn, kernels_,
                stream);
    } else {
      ssd_mixer(c_.mamba, block.mamba, batch.seqs, {states.array(2 * b), states.data(2 * b + 1)},
                mamba, x, ffn, kernels_, stream);
    }
    gated_ffn(block.ffn, c_.eps, x, reader_after(blocks_, b, last), hidden, kernels_, stream);
  }
  head(last, batch, x, picked, logits, kernels_, stream);
}

}  // namespace
}  // namespace granite_hybrid

std::unique_ptr<const Model> load_granite_hybrid(Checkpoint& checkpoint, Backend& backend,
                                                 const LoadOptions& options,
                                                 const Checkpoint::Progress& progress) {
  return std::make_unique<granite_hybrid::GraniteHybrid>(checkpoint, backend, options, progress);
}

}  // namespace recurve
