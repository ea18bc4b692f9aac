// The families of flash-linear-attention whose state is a matrix that fades and gains an outer
// product: GLA, simple GLA, RetNet, linear attention and HGRN2. One block for all: a mixer of
// queries, keys and values, and a gated feed-forward layer. They differ in where the decay comes
// from (kernels/ops/gla.h), in what is done to queries and keys, and in the norm of the output.
// Source: fla layers/{gla,simple_gla,multiscale_retention,linear_attn,hgrn2}.py, modules/mlp.py.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "kernels/check.h"
#include "model/layers/gated_ffn.h"
#include "model/layers/head.h"
#include "model/layers/required_ops.h"
#include "model/layers/token_weights.h"
#include "model/registry.h"
#include "model/special_ids.h"
#include "model/weights/config_reader.h"
#include "model/weights/convert.h"

namespace recurve {
namespace {

enum class Kind { kGla, kSimpleGla, kRetnet, kLinearAttention, kHgrn2 };

constexpr std::pair<const char*, Kind> kKinds[] = {{"gla", Kind::kGla},
                                                   {"simple_gla", Kind::kSimpleGla},
                                                   {"retnet", Kind::kRetnet},
                                                   {"linear_attn", Kind::kLinearAttention},
                                                   {"hgrn2", Kind::kHgrn2}};

// The grid of prompts; the configs name none.
constexpr int kChunk = 64;
// What fla's hgrn2.py norms the output with: it does not pass the layer's own eps on.
constexpr float kHgrn2NormEps = 1e-5f;
// fla ops/linear_attn/utils.py, normalize_output.
constexpr float kNormaliserEps = 1e-10f;

struct Config {
  Kind kind;
  std::string type;
  int64_t D, blocks, H, DK, DV, F, vocab;
  int64_t gate_rank;  // kGla
  int64_t width;      // of the short convolution; 0: none
  float eps, gate_divisor, gate_floor;
  Activation feature_map;
  bool tied, output_gate, head_norm, normaliser, lower_bound;
  int chunk;

  int64_t qk() const { return H * DK; }
  int64_t v() const { return H * DV; }
  int64_t mixed() const { return 2 * qk() + v(); }  // q, k, v: what a convolution sees
  // q, k, v, output gate, gates of the heads; HGRN2's forget gate has the place of k.
  int64_t projected() const {
    return mixed() + (output_gate ? v() : 0) + (kind == Kind::kSimpleGla ? H : 0);
  }
};

// fla writes sizes as int(width * factor).
int64_t scaled(int64_t width, double factor) {
  return static_cast<int64_t>(static_cast<double>(width) * factor);
}

// fla modules/mlp.py, GatedMLP.
int64_t read_ffn_size(ConfigReader& read, int64_t D, int64_t default_ratio) {
  const double ratio =
      read.optional_number("hidden_ratio", static_cast<double>(default_ratio), 1e-3, 64);
  const int64_t size = (scaled(D, ratio * 2 / 3) + 255) / 256 * 256;
  return read.optional_int("intermediate_size", size, 1, 1 << 20);
}

void read_heads(ConfigReader& read, Config& c) {
  if (c.kind == Kind::kHgrn2) {
    const int64_t heads = read.optional_int("num_heads", 0, 1, 4096);
    const int64_t ratio =
        read.optional_int("expand_ratio", heads > 0 ? c.D / heads : 128, 1, 1 << 16);
    c.H = c.D / ratio;
    if (c.H * ratio != c.D || (heads > 0 && heads != c.H)) {
      read.fail("expand_ratio", "a divisor of hidden_size that leaves num_heads",
                std::to_string(ratio));
    }
    c.DK = c.DV = ratio;
    return;
  }
  const bool retnet = c.kind == Kind::kRetnet;
  c.H = read.optional_int("num_heads", retnet ? 8 : 4, 1, 4096);
  const int64_t qk =
      scaled(c.D, read.optional_number("expand_k", c.kind == Kind::kGla ? 0.5 : 1.0, 1e-3, 64));
  const int64_t v = scaled(c.D, read.optional_number("expand_v", retnet ? 2.0 : 1.0, 1e-3, 64));
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
  read.must_be("num_kv_heads", c.H);
}

void read_convolution(ConfigReader& read, Config& c) {
  const bool used = c.kind != Kind::kLinearAttention &&
                    read.boolean("use_short_conv", c.kind == Kind::kSimpleGla);
  if (!used) {
    read.ignore({"conv_size", "share_conv_kernel", "conv_bias", "use_short_conv"});
    return;
  }
  c.width = read.optional_int("conv_size", 4, 2, 256);
  read.must_be("share_conv_kernel", false);
  read.must_be("conv_bias", false);
}

// What only one or another of the kinds has.
void read_kind(ConfigReader& read, Config& c) {
  c.output_gate = c.kind == Kind::kGla || c.kind == Kind::kSimpleGla || c.kind == Kind::kRetnet;
  c.head_norm = c.kind != Kind::kHgrn2;
  c.gate_floor = -std::numeric_limits<float>::infinity();
  c.feature_map = Activation::kIdentity;
  if (c.kind == Kind::kGla || c.kind == Kind::kSimpleGla) {
    c.gate_divisor =
        static_cast<float>(read.optional_number("gate_logit_normalizer", 16, 1e-3, 1e6));
    if (read.has("clamp_min") && c.kind == Kind::kGla) {
      c.gate_floor = static_cast<float>(read.required_number("clamp_min", -1e30, 0));
    }
    read.must_be("use_gk", true);
    read.must_be("use_gv", false);
  }
  if (c.kind == Kind::kGla) {
    c.gate_rank = read.optional_int("gate_low_rank_dim", 16, 1, 1 << 16);
  }
  if (c.kind == Kind::kGla || c.kind == Kind::kRetnet) {
    c.output_gate = read.boolean("use_output_gate", true);
  }
  if (c.kind == Kind::kLinearAttention) {
    const std::string map =
        read.string_one_of("feature_map", "elementwise_product", {"identity", "relu", "elu"});
    if (map == "elementwise_product") {
      read.fail("feature_map", "identity, relu or elu", "no such key, which is " + map);
    }
    c.feature_map = map == "relu"  ? Activation::kRelu
                    : map == "elu" ? Activation::kEluPlusOne
                                   : Activation::kIdentity;
    c.head_norm =
        read.string_one_of("output_norm", "rmsnorm", {"rmsnorm", "identity"}) == "rmsnorm";
    c.normaliser = read.boolean({"norm_feature_map", "do_feature_map_norm"}, false);
    read.must_be("norm_q", false);
    read.must_be("norm_k", false);
    read.ignore({"tie_feature_map_qk"});  // of maps with weights
  } else if (c.kind != Kind::kHgrn2) {
    const std::string map = read.string_one_of(
        "feature_map", "", {"identity", "relu", "silu", "swish", "sigmoid", "tanh"});
    c.feature_map = map == "relu"                     ? Activation::kRelu
                    : map == "silu" || map == "swish" ? Activation::kSilu
                    : map == "sigmoid"                ? Activation::kSigmoid
                    : map == "tanh"                   ? Activation::kTanh
                                                      : Activation::kIdentity;
  } else {
    c.lower_bound = read.boolean("use_lower_bound", true);
  }
}

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
  c.F = read_ffn_size(read, c.D, c.kind == Kind::kRetnet ? 2 : 4);
  c.tied = read.boolean("tie_word_embeddings", false);
  c.chunk = kChunk;
  read_heads(read, c);
  read_convolution(read, c);
  read_kind(read, c);
  read.string_one_of("hidden_act", "swish", {"swish", "silu"});
  read.string_one_of("gate_fn", "swish", {"swish", "silu"});
  read.must_be("elementwise_affine", true);
  read.must_be("attn", nullptr);  // layers of attention among the others
  // How others compute it, and of training; nothing of the function.
  read.ignore({"attn_mode", "fuse_norm", "fuse_swiglu", "fuse_cross_entropy",
               "fuse_linear_cross_entropy", "use_l2warp", "max_position_embeddings",
               "state_v_first"});
  read.finish();
  return c;
}

struct Block {
  VectorWeights norm;        // (D)
  LinearWeights projection;  // (projected, D)
  VectorWeights conv;        // (mixed, width)
  LinearWeights gate_down;   // (gate_rank, D), kGla
  LinearWeights gate_up;     // (H DK, gate_rank), kGla, with its bias
  VectorWeights bound;       // (H DK), kHgrn2: lower bounds of the decays; empty: zeros
  VectorWeights out_norm;    // (DV), or (D) of kHgrn2; empty: no norm
  LinearWeights out;         // (D, H DV)
  GatedFfn ffn;
};

class Gla final : public Model {
 public:
  Gla(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
      const Checkpoint::Progress& progress);

  const ModelInfo& info() const override { return info_; }
  StateLayout state_layout() const override;
  size_t arena_bytes(const StepLimits& limits) const override;
  void forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
               float* logits) const override;

 private:
  // Activations of one step.
  struct Scratch {
    float* x;           // (rows, D) the residual stream
    float* y;           // (rows, D) normalised
    float* projected;   // (rows, projected)
    float* mixed;       // (rows, mixed) after the convolution, if there is one
    float* gate_low;    // (rows, gate_rank)
    float* g;           // (rows, H DK) log decays of channels
    float* k;           // (rows, H DK) kHgrn2
    int32_t* position;  // (rows) kRetnet
    float* o;           // (rows, H DV)
    float* gate_up;     // (rows, 2 F)
    float* hidden;      // (rows, F)
    float* picked;      // (logits, D)
  };
  // Queries, keys and values of a step and the rest that the recurrence takes.
  struct Mixed {
    float *q, *k, *v;
    int stride, k_stride;
  };
  bool channel_decay() const { return c_.kind == Kind::kGla || c_.kind == Kind::kHgrn2; }
  std::vector<int64_t> widths() const;
  Scratch take_scratch(Arena& arena, int rows, int logits) const;
  size_t states_a_block() const { return 1 + (c_.width > 0 ? 1 : 0) + (c_.normaliser ? 1 : 0); }

  Block load_block(Checkpoint& checkpoint, Backend& backend, const std::string& prefix,
                   DType dtype) const;
  GatedFfn load_ffn(Checkpoint& checkpoint, Backend& backend, const std::string& prefix,
                    DType dtype) const;
  void load_bounds(Checkpoint& checkpoint, Backend& backend, const std::string& name);
  void fill_info(const Checkpoint& checkpoint);

  void mixer(const Block& block, size_t index, const Ragged& seqs, const StatePool& states,
             const Scratch& scratch, Stream& stream) const;
  Mixed mix(const Block& block, size_t index, const Ragged& seqs, const StatePool& states,
            const Scratch& scratch, Stream& stream) const;
  void gates(const Block& block, int rows, const Scratch& scratch, Mixed& in, Stream& stream) const;
  void recur(size_t index, const Ragged& seqs, const StatePool& states, const Scratch& scratch,
             const Mixed& in, Stream& stream) const;
  void apply(Activation f, float scale, float floor, int rows, int64_t width, int stride, float* x,
             Stream& stream) const;

  Config c_;
  const Kernels& kernels_;
  TokenWeights tokens_;
  std::vector<Block> blocks_;
  VectorWeights head_decay_;  // (H) log decays, kRetnet
  VectorWeights frequency_;   // (DK / 2), kRetnet
  ModelInfo info_;
};

// RetNet: 1 - 2^(-5 - h) for head h, as fla ops/retention computes it.
std::vector<float> retnet_decays(int64_t H) {
  std::vector<float> decays;
  for (int64_t h = 0; h < H; ++h) {
    decays.push_back(static_cast<float>(std::log1p(-std::exp2(-5.0 - static_cast<double>(h)))));
  }
  return decays;
}

std::vector<float> rotary_frequencies(int64_t DK) {
  std::vector<float> frequencies;
  for (int64_t j = 0; j < DK / 2; ++j) {
    frequencies.push_back(static_cast<float>(
        std::pow(10000.0, -2.0 * static_cast<double>(j) / static_cast<double>(DK))));
  }
  return frequencies;
}

std::string existing(const Checkpoint& checkpoint, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (checkpoint.find(name) != nullptr) return name;
  }
  return names.front();
}

Gla::Gla(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
         const Checkpoint::Progress& progress)
    : c_(read_config(checkpoint)), kernels_(backend.kernels()) {
  require_ops(backend, c_.type,
              {"embed", "gather_rows", "rms_norm", "linear", "gla", "head_rms_norm", "swiglu"});
  if (c_.width > 0) require_ops(backend, c_.type, {"causal_conv1d"});
  if (c_.kind == Kind::kRetnet) require_ops(backend, c_.type, {"positions", "rotary"});
  if (c_.kind == Kind::kHgrn2) require_ops(backend, c_.type, {"hgrn_gate"});
  if (c_.kind != Kind::kRetnet) require_ops(backend, c_.type, {"activation"});
  if (options.chunk > 0) c_.chunk = options.chunk;
  const std::string prefix = checkpoint.detect_prefix({"model.", ""}, "norm.weight");
  tokens_ = load_token_weights(backend, checkpoint, prefix, "norm.weight", c_.vocab, c_.D, c_.tied,
                               options.weights);
  for (int64_t b = 0; b < c_.blocks; ++b) {
    blocks_.push_back(
        load_block(checkpoint, backend, fmt::format("{}layers.{}.", prefix, b), options.weights));
  }
  if (c_.lower_bound) load_bounds(checkpoint, backend, prefix + "lower_bounds");
  if (c_.kind == Kind::kRetnet) {
    head_decay_ = VectorWeights::from(backend, retnet_decays(c_.H));
    frequency_ = VectorWeights::from(backend, rotary_frequencies(c_.DK));
    checkpoint.allow_extra({prefix + "rotary.inv_freq"});
  }
  checkpoint.finish(progress);
  fill_info(checkpoint);
}

// The kernels of the convolutions of q, k and v, one below the other.
VectorWeights load_convolution(Checkpoint& checkpoint, Backend& backend,
                               const std::vector<std::pair<std::string, int64_t>>& parts,
                               int64_t width) {
  std::vector<float> values;
  for (const auto& [name, channels] : parts) {
    const std::vector<float> part =
        host_values(checkpoint.take_any({name}, {{channels, 1, width}, {channels, width}}));
    values.insert(values.end(), part.begin(), part.end());
  }
  return VectorWeights::from(backend, values);
}

Block Gla::load_block(Checkpoint& checkpoint, Backend& backend, const std::string& prefix,
                      DType dtype) const {
  const std::string a = prefix + "attn.";
  const bool hgrn2 = c_.kind == Kind::kHgrn2;
  const auto vector = [&](const std::string& name, int64_t size) {
    return VectorWeights::load(backend, checkpoint, name, {{size}});
  };
  const auto linear = [&](const std::vector<LinearWeights::Part>& parts, int64_t K) {
    return LinearWeights::load(backend, checkpoint, parts, K, dtype);
  };
  const std::string second = hgrn2 ? "f" : "k", third = hgrn2 ? "i" : "v";
  std::vector<LinearWeights::Part> parts = {{a + "q_proj.weight", c_.qk()},
                                            {a + second + "_proj.weight", c_.qk()},
                                            {a + third + "_proj.weight", c_.v()}};
  if (c_.output_gate) parts.push_back({a + "g_proj.weight", c_.v()});
  if (c_.kind == Kind::kSimpleGla) {
    parts.push_back({a + "gk_proj.weight", c_.H, a + "gk_proj.bias"});
  }
  Block block;
  block.norm = vector(prefix + "attn_norm.weight", c_.D);
  block.projection = linear(parts, c_.D);
  if (c_.width > 0) {
    block.conv = load_convolution(checkpoint, backend,
                                  {{a + "q_conv1d.weight", c_.qk()},
                                   {a + second + "_conv1d.weight", c_.qk()},
                                   {a + third + "_conv1d.weight", c_.v()}},
                                  c_.width);
  }
  if (c_.kind == Kind::kGla) {
    block.gate_down = linear({{a + "gk_proj.0.weight", c_.gate_rank}}, c_.D);
    block.gate_up = linear({{a + "gk_proj.1.weight", c_.qk(), a + "gk_proj.1.bias"}}, c_.gate_rank);
  }
  if (c_.head_norm || hgrn2) {
    block.out_norm = vector(existing(checkpoint, {a + "g_norm_swish_gate.weight",
                                                  a + "g_norm.weight", a + "norm.weight"}),
                            hgrn2 ? c_.v() : c_.DV);
  }
  block.out = linear({{a + "o_proj.weight", c_.D}}, c_.v());
  block.ffn = load_ffn(checkpoint, backend, prefix, dtype);
  return block;
}

// Before 2025-02 the two halves were one matrix, called gate_proj: gate rows, then up rows.
GatedFfn Gla::load_ffn(Checkpoint& checkpoint, Backend& backend, const std::string& prefix,
                       DType dtype) const {
  const std::string gate = prefix + "mlp.gate_proj.weight", up = prefix + "mlp.up_proj.weight";
  const TensorView* found = checkpoint.find(gate);
  const bool fused = found != nullptr && found->rows() == 2 * c_.F;
  using Parts = std::vector<LinearWeights::Part>;
  const Parts parts = fused ? Parts{{gate, 2 * c_.F}} : Parts{{gate, c_.F}, {up, c_.F}};
  return {.norm = VectorWeights::load(backend, checkpoint, prefix + "mlp_norm.weight", {{c_.D}}),
          .gate_up = LinearWeights::load(backend, checkpoint, parts, c_.D, dtype),
          .down = LinearWeights::load(backend, checkpoint,
                                      {{prefix + "mlp.down_proj.weight", c_.D}}, c_.F, dtype)};
}

// Of block b: the sum of the softmax over blocks from 1 to b, so none for the first.
void Gla::load_bounds(Checkpoint& checkpoint, Backend& backend, const std::string& name) {
  const std::vector<float> logits = host_values(checkpoint.take(name, {c_.blocks, c_.D}));
  if (logits.empty()) return;
  const size_t D = static_cast<size_t>(c_.D);
  std::vector<double> total(D), sum(D);
  const auto weight = [&](size_t b, size_t d) {
    double largest = logits[d];
    for (size_t j = 0; j < blocks_.size(); ++j) {
      largest = std::max<double>(largest, logits[j * D + d]);
    }
    return std::exp(logits[b * D + d] - largest);
  };
  for (size_t b = 0; b < blocks_.size(); ++b) {
    for (size_t d = 0; d < D; ++d) total[d] += weight(b, d);
  }
  for (size_t b = 1; b < blocks_.size(); ++b) {
    std::vector<float> bounds;
    for (size_t d = 0; d < D; ++d) {
      sum[d] += weight(b, d) / total[d];
      bounds.push_back(static_cast<float>(sum[d]));
    }
    blocks_[b].bound = VectorWeights::from(backend, bounds);
  }
}

void Gla::fill_info(const Checkpoint& checkpoint) {
  WeightTally tally;
  tally.add(tokens_);
  for (const Block& b : blocks_) {
    for (const LinearWeights* weights :
         {&b.projection, &b.gate_down, &b.gate_up, &b.out, &b.ffn.gate_up, &b.ffn.down}) {
      tally.add(*weights);
    }
    for (const VectorWeights* weights : {&b.norm, &b.conv, &b.out_norm, &b.ffn.norm}) {
      tally.add(*weights);
    }
  }
  info_.parameters = tally.parameters + (c_.lower_bound ? c_.blocks * c_.D : 0);
  info_.weight_bytes = tally.bytes;
  info_.family = c_.type;
  info_.description = fmt::format("{} blocks, width {}, {} heads of {} x {}, feed-forward {}",
                                  c_.blocks, c_.D, c_.H, c_.DK, c_.DV, c_.F);
  info_.vocab = c_.vocab;
  info_.chunk = c_.chunk;
  const SpecialIds ids = read_special_ids(checkpoint);
  info_.bos = ids.bos;
  info_.eos = ids.eos;
  info_.force_bos = ids.force_bos.value_or(false);
}

StateLayout Gla::state_layout() const {
  StateLayout layout;
  for (int b = 0; b < static_cast<int>(c_.blocks); ++b) {
    layout.arrays.push_back({.name = "S", .layer = b, .shape = {c_.H, c_.DK, c_.DV}});
    if (c_.normaliser) layout.arrays.push_back({.name = "z", .layer = b, .shape = {c_.H, c_.DK}});
    if (c_.width > 0) {
      layout.arrays.push_back({.name = "conv", .layer = b, .shape = {c_.mixed(), c_.width - 1}});
    }
  }
  if (c_.kind == Kind::kRetnet) {  // how far the session has come, for all blocks
    layout.arrays.push_back({.name = "position", .dtype = DType::kI32, .shape = {1}});
  }
  return layout;
}

// Of the rows of Scratch, but for `picked`, in its order.
std::vector<int64_t> Gla::widths() const {
  return {c_.D,
          c_.D,
          c_.projected(),
          c_.width > 0 ? c_.mixed() : 0,
          c_.gate_rank,
          channel_decay() ? c_.qk() : 0,
          c_.kind == Kind::kHgrn2 ? c_.qk() : 0,
          c_.kind == Kind::kRetnet ? 1 : 0,
          c_.v(),
          2 * c_.F,
          c_.F};
}

size_t Gla::arena_bytes(const StepLimits& limits) const {
  const auto room = [](int count, int64_t width) {
    return Arena::room(static_cast<size_t>(count) * static_cast<size_t>(width));
  };
  size_t bytes = room(limits.logits, c_.D);
  for (const int64_t width : widths()) bytes += room(limits.rows, width);
  return bytes;
}

Gla::Scratch Gla::take_scratch(Arena& arena, int rows, int logits) const {
  std::vector<float*> arrays;
  for (const int64_t width : widths()) {
    arrays.push_back(arena.floats(static_cast<size_t>(rows) * static_cast<size_t>(width)));
  }
  static_assert(sizeof(float) == sizeof(int32_t));
  return {.x = arrays[0],
          .y = arrays[1],
          .projected = arrays[2],
          .mixed = arrays[3],
          .gate_low = arrays[4],
          .g = arrays[5],
          .k = arrays[6],
          .position = reinterpret_cast<int32_t*>(arrays[7]),
          .o = arrays[8],
          .gate_up = arrays[9],
          .hidden = arrays[10],
          .picked = arena.floats(static_cast<size_t>(logits) * static_cast<size_t>(c_.D))};
}

void Gla::forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
                  float* logits) const {
  const int rows = batch.seqs.rows;
  arena.reset();
  const Scratch s = take_scratch(arena, rows, batch.num_logits);
  kernels_.embed({.rows = rows, .E = tokens_.embedding.matrix(), .token = batch.tokens, .x = s.x},
                 stream);
  if (c_.kind == Kind::kRetnet) {
    kernels_.positions({.seqs = batch.seqs,
                        .count = states.array<int32_t>(states_a_block() * blocks_.size()),
                        .position = s.position},
                       stream);
  }
  for (size_t b = 0; b < blocks_.size(); ++b) {
    mixer(blocks_[b], b, batch.seqs, states, s, stream);
    gated_ffn(blocks_[b].ffn, c_.eps, rows, s.x, s.y, s.gate_up, s.hidden, kernels_, stream);
  }
  head({.norm = &tokens_.norm, .W = tokens_.head_matrix(), .eps = c_.eps, .soft_cap = 0}, batch,
       s.x, s.picked, logits, kernels_, stream);
}

void Gla::mixer(const Block& block, size_t index, const Ragged& seqs, const StatePool& states,
                const Scratch& s, Stream& stream) const {
  const int rows = seqs.rows, D = static_cast<int>(c_.D);
  kernels_.rms_norm(
      {.rows = rows, .D = D, .eps = c_.eps, .x = s.x, .w = block.norm.data(), .y = s.y}, stream);
  Mixed in = mix(block, index, seqs, states, s, stream);
  gates(block, rows, s, in, stream);
  recur(index, seqs, states, s, in, stream);
  if (c_.kind == Kind::kHgrn2) {  // over all heads together
    kernels_.rms_norm({.rows = rows,
                       .D = static_cast<int>(c_.v()),
                       .eps = kHgrn2NormEps,
                       .x = s.o,
                       .w = block.out_norm.data(),
                       .y = s.o},
                      stream);
  } else if (c_.head_norm) {
    kernels_.head_rms_norm({.rows = rows,
                            .H = static_cast<int>(c_.H),
                            .DV = static_cast<int>(c_.DV),
                            .eps = c_.eps,
                            .gate_stride = static_cast<int>(c_.projected()),
                            .x = s.o,
                            .w = block.out_norm.data(),
                            .gate = c_.output_gate ? s.projected + c_.mixed() : nullptr,
                            .y = s.o},
                           stream);
  }
  kernels_.linear({.rows = rows, .W = block.out.matrix(), .residual = s.x, .x = s.o, .y = s.x},
                  stream);
}

void Gla::apply(Activation f, float scale, float floor, int rows, int64_t width, int stride,
                float* x, Stream& stream) const {
  kernels_.activation({.rows = rows,
                       .width = static_cast<int>(width),
                       .f = f,
                       .scale = scale,
                       .floor = floor,
                       .x_stride = stride,
                       .y_stride = stride,
                       .x = x,
                       .y = x},
                      stream);
}

// Queries, keys and values: projected, convolved, mapped and turned.
Gla::Mixed Gla::mix(const Block& block, size_t index, const Ragged& seqs, const StatePool& states,
                    const Scratch& s, Stream& stream) const {
  const int rows = seqs.rows, projected = static_cast<int>(c_.projected());
  kernels_.linear({.rows = rows,
                   .W = block.projection.matrix(),
                   .bias = block.projection.bias(),
                   .x = s.y,
                   .y = s.projected},
                  stream);
  if (c_.width > 0) {
    kernels_.causal_conv1d(
        {.seqs = seqs,
         .D = static_cast<int>(c_.mixed()),
         .width = static_cast<int>(c_.width),
         .silu = c_.kind != Kind::kHgrn2,
         .x_stride = projected,
         .x = s.projected,
         .w = block.conv.data(),
         .bias = nullptr,
         .state = states.array(states_a_block() * index + (c_.normaliser ? 2 : 1)),
         .y = s.mixed},
        stream);
  }
  float* q = c_.width > 0 ? s.mixed : s.projected;
  const int stride = c_.width > 0 ? static_cast<int>(c_.mixed()) : projected;
  const float no_floor = -std::numeric_limits<float>::infinity();
  if (c_.kind == Kind::kHgrn2) {
    apply(Activation::kSilu, 1, no_floor, rows, c_.qk(), stride, q, stream);
  } else if (c_.feature_map != Activation::kIdentity) {
    apply(c_.feature_map, 1, no_floor, rows, 2 * c_.qk(), stride, q, stream);
  }
  if (c_.kind == Kind::kRetnet) {  // queries and keys: 2 H heads
    kernels_.rotary({.rows = rows,
                     .H = static_cast<int>(2 * c_.H),
                     .D = static_cast<int>(c_.DK),
                     .stride = stride,
                     .position = s.position,
                     .frequency = frequency_.data(),
                     .x = q},
                    stream);
  }
  return {.q = q, .k = q + c_.qk(), .v = q + 2 * c_.qk(), .stride = stride, .k_stride = stride};
}

// The logs of the decays, into s.g or in place; HGRN2's keys come with them.
void Gla::gates(const Block& block, int rows, const Scratch& s, Mixed& in, Stream& stream) const {
  const int qk = static_cast<int>(c_.qk()), projected = static_cast<int>(c_.projected());
  if (c_.kind == Kind::kHgrn2) {
    kernels_.hgrn_gate({.rows = rows,
                        .D = qk,
                        .f_stride = in.stride,
                        .f = in.k,
                        .bound = block.bound.data(),
                        .g = s.g,
                        .k = s.k},
                       stream);
    in.k = s.k;
    in.k_stride = qk;
  } else if (c_.kind == Kind::kGla) {
    kernels_.linear({.rows = rows, .W = block.gate_down.matrix(), .x = s.y, .y = s.gate_low},
                    stream);
    kernels_.linear({.rows = rows,
                     .W = block.gate_up.matrix(),
                     .bias = block.gate_up.bias(),
                     .x = s.gate_low,
                     .y = s.g},
                    stream);
    apply(Activation::kLogSigmoid, 1 / c_.gate_divisor, c_.gate_floor, rows, qk, qk, s.g, stream);
  } else if (c_.kind == Kind::kSimpleGla) {
    apply(Activation::kLogSigmoid, 1 / c_.gate_divisor, c_.gate_floor, rows, c_.H, projected,
          s.projected + projected - c_.H, stream);
  }
}

void Gla::recur(size_t index, const Ragged& seqs, const StatePool& states, const Scratch& s,
                const Mixed& in, Stream& stream) const {
  const int projected = static_cast<int>(c_.projected());
  GlaDecay decay = GlaDecay::kNone;
  const float* g = nullptr;
  int g_stride = 0;
  if (channel_decay()) {
    decay = GlaDecay::kChannel;
    g = s.g;
    g_stride = static_cast<int>(c_.qk());
  } else if (c_.kind == Kind::kSimpleGla) {
    decay = GlaDecay::kToken;
    g = s.projected + projected - c_.H;
    g_stride = projected;
  } else if (c_.kind == Kind::kRetnet) {
    decay = GlaDecay::kHead;
    g = head_decay_.data();
  }
  const size_t first = states_a_block() * index;
  kernels_.gla({.seqs = seqs,
                .H = static_cast<int>(c_.H),
                .DK = static_cast<int>(c_.DK),
                .DV = static_cast<int>(c_.DV),
                .chunk = c_.chunk,
                .decay = decay,
                .scale = 1.0f / std::sqrt(static_cast<float>(c_.DK)),
                .eps = kNormaliserEps,
                .q_stride = in.stride,
                .k_stride = in.k_stride,
                .v_stride = in.stride,
                .g_stride = g_stride,
                .q = in.q,
                .k = in.k,
                .v = in.v,
                .g = g,
                .i = nullptr,
                .S = states.array(first),
                .z = c_.normaliser ? states.array(first + 1) : nullptr,
                .o = s.o},
               stream);
}

}  // namespace

std::unique_ptr<const Model> load_gla(Checkpoint& checkpoint, Backend& backend,
                                      const LoadOptions& options,
                                      const Checkpoint::Progress& progress) {
  return std::make_unique<Gla>(checkpoint, backend, options, progress);
}

}  // namespace recurve
