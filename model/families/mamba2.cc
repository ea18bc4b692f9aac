// Mamba-2: blocks of one multi-head state space each. Checkpoints as transformers writes them
// (models/mamba2; Mamba-Codestral among them), and with the names and the config of
// state-spaces/mamba (mamba_ssm/models/mixer_seq_simple.py, modules/mamba2.py).
// The gated norm is over each group, as in mamba_ssm. transformers norms over all groups together,
// which gives other logits where there is more than one.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

#include "model/layers/decay.h"
#include "model/layers/head.h"
#include "model/layers/required_ops.h"
#include "model/layers/token_weights.h"
#include "model/registry.h"
#include "model/special_ids.h"
#include "model/weights/config_reader.h"

namespace recurve {
namespace {

struct Config {
  int64_t D, layers, DI, H, P, N, G, width, vocab;
  float eps, gate_eps, dt_min, dt_max;
  int chunk;
  bool tied, bias, conv_bias;

  int64_t conv_width() const { return DI + 2 * G * N; }
  int64_t projection_width() const { return DI + conv_width() + H; }
};

// The configs' chunk_size is that of the kernel the model was trained with; a finer grid computes
// less and gives the scheduler more to choose from.
constexpr int kChunk = 64;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// A limit of the time step: a number, also as transformers tags those that JSON does not have.
float read_limit(const ConfigReader& read, const char* key, const nlohmann::json& value) {
  double limit = NAN;
  if (value.is_number()) limit = value.get<double>();
  if (value.is_object() && value.size() == 1 && value.value("__float__", "") == "Infinity") {
    limit = std::numeric_limits<double>::infinity();
  }
  if (!(limit >= 0)) read.fail(key, "two numbers, 0 or more", value.dump());
  constexpr float kMost = std::numeric_limits<float>::max();
  return limit > static_cast<double>(kMost) ? std::numeric_limits<float>::infinity()
                                            : static_cast<float>(limit);
}

void read_limits(ConfigReader& read, const nlohmann::json& config, const char* key, Config& c) {
  c.dt_min = 0;
  c.dt_max = std::numeric_limits<float>::infinity();
  read.ignore({key});
  if (!read.has(key)) return;
  const nlohmann::json& value = config[key];
  if (!value.is_array() || value.size() != 2) {
    read.fail(key, "two numbers, 0 or more", value.dump());
  }
  c.dt_min = read_limit(read, key, value[0]);
  c.dt_max = read_limit(read, key, value[1]);
  if (c.dt_min > c.dt_max) read.fail(key, "the lower limit first", value.dump());
}

// What state-spaces' config has under ssm_cfg; those of transformers have it at the top.
void read_mixer(ConfigReader& read, const nlohmann::json& config, bool original, Config& c) {
  using Keys = ConfigReader::Keys;
  const auto either = [&](const char* ours, const char* hf) { return Keys{original ? ours : hf}; };
  c.N = read.optional_int(either("d_state", "state_size"), 128, 1, 1 << 16);
  c.width = read.optional_int(either("d_conv", "conv_kernel"), 4, 2, 256);
  c.P = read.optional_int(either("headdim", "head_dim"), 64, 1, 1 << 16);
  c.G = read.optional_int(either("ngroups", "n_groups"), original ? 1 : 8, 1, 1 << 16);
  c.bias = read.boolean(either("bias", "use_bias"), false);
  c.conv_bias = read.boolean(either("conv_bias", "use_conv_bias"), true);
  c.DI = static_cast<int64_t>(static_cast<double>(c.D) *
                              read.optional_number("expand", 2, 1.0 / 64, 64));
  if (c.DI % c.P != 0) {
    read.fail(original ? "headdim" : "head_dim",
              fmt::format("a divisor of the inner width {}", c.DI), std::to_string(c.P));
  }
  c.H = c.DI / c.P;
  if (c.H % c.G != 0) {
    read.fail(original ? "ngroups" : "n_groups",
              fmt::format("a divisor of the number of heads {}", c.H), std::to_string(c.G));
  }
  read_limits(read, config, original ? "dt_limit" : "time_step_limit", c);
  read.optional_int("chunk_size", 256, 1, 1 << 20);
}

void read_original_mixer(const nlohmann::json& ssm_cfg, const std::string& file, Config& c) {
  ConfigReader read(ssm_cfg, file + ": ssm_cfg");
  read_mixer(read, ssm_cfg, true, c);
  read.must_be("layer", "Mamba2");
  read.must_be("d_ssm", c.DI);
  read.must_be("D_has_hdim", false);
  read.must_be("rmsnorm", true);
  read.must_be("norm_before_gate", false);
  read.string_one_of("activation", "swish", {"silu", "swish"});
  read.ignore({"conv_init", "A_init_range", "dt_min", "dt_max", "dt_init_floor", "use_mem_eff_path",
               "sequence_parallel"});
  read.finish();
}

Config read_config(const Checkpoint& checkpoint) {
  const nlohmann::json& config = checkpoint.config();
  ConfigReader read(config, checkpoint.config_file());
  const bool original = !read.has("hidden_size");
  Config c{};
  c.D = read.required_int({"hidden_size", "d_model"}, 1, 1 << 20);
  c.layers = read.required_int({"num_hidden_layers", "n_layer"}, 1, 4096);
  c.eps =
      static_cast<float>(read.optional_number({"layer_norm_epsilon", "norm_epsilon"}, 1e-5, 0, 1));
  // mamba_ssm's gated norm has an epsilon of its own, which no config sets.
  c.gate_eps = original ? 1e-5f : c.eps;
  c.tied =
      read.boolean({"tie_word_embeddings", "tie_embeddings"}, original || !has_lm_head(checkpoint));
  c.vocab = round_up(read.required_int("vocab_size", 1, 1 << 24),
                     read.optional_int("pad_vocab_size_multiple", original ? 8 : 1, 1, 1 << 20));
  c.chunk = kChunk;
  if (original) {
    static const nlohmann::json kNone = nlohmann::json::object();
    read_original_mixer(read.has("ssm_cfg") ? config["ssm_cfg"] : kNone, checkpoint.config_file(),
                        c);
    read.ignore({"ssm_cfg"});
  } else {
    read_mixer(read, config, false, c);
    read.must_be({"intermediate_size", "d_inner"}, c.DI);
    read.must_be("num_heads", c.H);
    read.must_be("ssm_cfg", nlohmann::json{{"layer", "Mamba2"}});
  }
  read.string_one_of("hidden_act", "silu", {"silu", "swish"});
  read.must_be("rms_norm", true);
  read.must_be("d_intermediate", 0);
  read.must_be("attn_layer_idx", nlohmann::json::array());
  // Of training and of how others compute it; the residual is fp32 here whatever they say.
  // norm_before_gate: Codestral's config says true, of a model whose gate comes first; the code it
  // is for does not look at it.
  read.ignore({"attn_cfg", "fused_add_norm", "norm_before_gate", "residual_in_fp32",
               "time_step_rank", "time_step_scale", "time_step_init_scheme", "time_step_min",
               "time_step_max", "time_step_floor", "rescale_prenorm_residual"});
  read.finish();
  return c;
}

struct Block {
  VectorWeights norm;       // (D)
  LinearWeights in;         // (2 DI + 2 G N + H, D): z, x, B, C, dt
  VectorWeights conv;       // (DI + 2 G N, width)
  VectorWeights conv_bias;  // (DI + 2 G N), or empty
  VectorWeights dt_bias;    // (H)
  VectorWeights A;          // (H)
  VectorWeights skip;       // (H)
  VectorWeights gate_norm;  // (DI)
  LinearWeights out;        // (D, DI)
};

class Mamba2 final : public Model {
 public:
  Mamba2(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
         const Checkpoint::Progress& progress);

  const ModelInfo& info() const override { return info_; }
  StateLayout state_layout() const override;
  size_t arena_bytes(const StepLimits& limits) const override;
  void forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
               float* logits) const override;

 private:
  // Activations of one step.
  struct Scratch {
    float* x;       // (rows, D) the residual stream
    float* y;       // (rows, D) normalised
    float* zxBCdt;  // (rows, projection_width)
    float* xBC;     // (rows, conv_width) after the convolution
    float* v;       // (rows, H, P) out of the state space
    float* picked;  // (logits, D)
  };
  Block load_block(Checkpoint& checkpoint, Backend& backend, const std::string& prefix,
                   DType dtype) const;
  void mixer(const Block& block, size_t index, const Ragged& seqs, const StatePool& states,
             const Scratch& scratch, Stream& stream) const;
  void state_space(const Block& block, size_t index, const Ragged& seqs, const StatePool& states,
                   const Scratch& scratch, Stream& stream) const;
  void fill_info(const Checkpoint& checkpoint);

  Config c_;
  const Kernels& kernels_;
  TokenWeights tokens_;
  std::vector<Block> blocks_;
  ModelInfo info_;
};

Mamba2::Mamba2(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
               const Checkpoint::Progress& progress)
    : c_(read_config(checkpoint)), kernels_(backend.kernels()) {
  require_ops(
      backend, "mamba2",
      {"embed", "gather_rows", "rms_norm", "linear", "causal_conv1d", "ssd", "gated_rms_norm"});
  if (options.chunk > 0) c_.chunk = options.chunk;
  const std::string prefix =
      checkpoint.detect_prefix({"backbone.", "model.backbone.", "model.", ""}, "norm_f.weight");
  tokens_ = load_token_weights(backend, checkpoint, prefix, "norm_f.weight", c_.vocab, c_.D,
                               c_.tied, options.weights);
  for (int64_t b = 0; b < c_.layers; ++b) {
    blocks_.push_back(
        load_block(checkpoint, backend, fmt::format("{}layers.{}.", prefix, b), options.weights));
  }
  checkpoint.finish(progress);
  fill_info(checkpoint);
}

Block Mamba2::load_block(Checkpoint& checkpoint, Backend& backend, const std::string& prefix,
                         DType dtype) const {
  const std::string m = prefix + "mixer.";
  const int64_t conv = c_.conv_width();
  const auto vector = [&](const std::string& name, std::vector<Shape> shapes) {
    return VectorWeights::load(backend, checkpoint, name, shapes);
  };
  const auto linear = [&](const std::string& name, int64_t N, int64_t K) {
    const std::string bias_name = c_.bias ? m + name + ".bias" : "";
    return LinearWeights::load(backend, checkpoint, {{m + name + ".weight", N, bias_name}}, K,
                               dtype);
  };
  return {.norm = vector(prefix + "norm.weight", {{c_.D}}),
          .in = linear("in_proj", c_.projection_width(), c_.D),
          .conv = vector(m + "conv1d.weight", {{conv, 1, c_.width}, {conv, c_.width}}),
          .conv_bias = c_.conv_bias ? vector(m + "conv1d.bias", {{conv}}) : VectorWeights(),
          .dt_bias = vector(m + "dt_bias", {{c_.H}}),
          .A = load_decay(backend, checkpoint, m + "A_log", {c_.H}),
          .skip = vector(m + "D", {{c_.H}}),
          .gate_norm = vector(m + "norm.weight", {{c_.DI}}),
          .out = linear("out_proj", c_.D, c_.DI)};
}

void Mamba2::fill_info(const Checkpoint& checkpoint) {
  WeightTally tally;
  tally.add(tokens_);
  for (const Block& b : blocks_) {
    tally.add(b.in);
    tally.add(b.out);
    for (const VectorWeights* weights :
         {&b.norm, &b.conv, &b.conv_bias, &b.dt_bias, &b.A, &b.skip, &b.gate_norm}) {
      tally.add(*weights);
    }
  }
  info_.parameters = tally.parameters;
  info_.weight_bytes = tally.bytes;
  info_.family = "mamba2";
  info_.description = fmt::format("{} blocks, width {}, {} heads of {} x {} in {} {}", c_.layers,
                                  c_.D, c_.H, c_.P, c_.N, c_.G, c_.G == 1 ? "group" : "groups");
  info_.vocab = c_.vocab;
  info_.chunk = c_.chunk;
  const SpecialIds ids = read_special_ids(checkpoint);
  info_.bos = ids.bos;
  info_.eos = ids.eos;
  info_.force_bos = ids.force_bos.value_or(false);
}

StateLayout Mamba2::state_layout() const {
  StateLayout layout;
  for (int b = 0; b < static_cast<int>(c_.layers); ++b) {
    layout.arrays.push_back({.name = "conv", .layer = b, .shape = {c_.conv_width(), c_.width - 1}});
    layout.arrays.push_back({.name = "h", .layer = b, .shape = {c_.H, c_.P, c_.N}});
  }
  return layout;
}

size_t Mamba2::arena_bytes(const StepLimits& limits) const {
  const auto room = [](int count, int64_t width) {
    return Arena::room(static_cast<size_t>(count) * static_cast<size_t>(width));
  };
  size_t bytes = room(limits.logits, c_.D);
  for (const int64_t width : {c_.D, c_.D, c_.projection_width(), c_.conv_width(), c_.DI}) {
    bytes += room(limits.rows, width);  // Scratch
  }
  return bytes;
}

void Mamba2::forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
                     float* logits) const {
  const int rows = batch.seqs.rows;
  const auto take = [&](int count, int64_t width) {
    return arena.floats(static_cast<size_t>(count) * static_cast<size_t>(width));
  };
  arena.reset();
  const Scratch s{.x = take(rows, c_.D),
                  .y = take(rows, c_.D),
                  .zxBCdt = take(rows, c_.projection_width()),
                  .xBC = take(rows, c_.conv_width()),
                  .v = take(rows, c_.DI),
                  .picked = take(batch.num_logits, c_.D)};

  kernels_.embed({.rows = rows, .E = tokens_.embedding.matrix(), .token = batch.tokens, .x = s.x},
                 stream);
  for (size_t b = 0; b < blocks_.size(); ++b) mixer(blocks_[b], b, batch.seqs, states, s, stream);
  head({.norm = &tokens_.norm, .W = tokens_.head_matrix(), .eps = c_.eps, .soft_cap = 0}, batch,
       s.x, s.picked, logits, kernels_, stream);
}

void Mamba2::mixer(const Block& block, size_t index, const Ragged& seqs, const StatePool& states,
                   const Scratch& s, Stream& stream) const {
  const int rows = seqs.rows, DI = static_cast<int>(c_.DI);
  kernels_.rms_norm({.rows = rows,
                     .D = static_cast<int>(c_.D),
                     .eps = c_.eps,
                     .x = s.x,
                     .w = block.norm.data(),
                     .y = s.y},
                    stream);
  kernels_.linear(
      {.rows = rows, .W = block.in.matrix(), .bias = block.in.bias(), .x = s.y, .y = s.zxBCdt},
      stream);
  state_space(block, index, seqs, states, s, stream);
  kernels_.gated_rms_norm({.rows = rows,
                           .D = DI,
                           .G = static_cast<int>(c_.G),
                           .eps = c_.gate_eps,
                           .x_stride = DI,
                           .z_stride = static_cast<int>(c_.projection_width()),
                           .y_stride = DI,
                           .x = s.v,
                           .z = s.zxBCdt,
                           .w = block.gate_norm.data(),
                           .y = s.v},
                          stream);
  kernels_.linear({.rows = rows,
                   .W = block.out.matrix(),
                   .bias = block.out.bias(),
                   .residual = s.x,
                   .x = s.v,
                   .y = s.x},
                  stream);
}

// s.v from s.zxBCdt.
void Mamba2::state_space(const Block& block, size_t index, const Ragged& seqs,
                         const StatePool& states, const Scratch& s, Stream& stream) const {
  const int DI = static_cast<int>(c_.DI), GN = static_cast<int>(c_.G * c_.N);
  const int conv = static_cast<int>(c_.conv_width());
  const int projection = static_cast<int>(c_.projection_width());
  kernels_.causal_conv1d({.seqs = seqs,
                          .D = conv,
                          .width = static_cast<int>(c_.width),
                          .silu = true,
                          .x_stride = projection,
                          .x = s.zxBCdt + DI,
                          .w = block.conv.data(),
                          .bias = block.conv_bias.data(),
                          .state = states.array(2 * index),
                          .y = s.xBC},
                         stream);
  kernels_.ssd({.seqs = seqs,
                .H = static_cast<int>(c_.H),
                .P = static_cast<int>(c_.P),
                .N = static_cast<int>(c_.N),
                .G = static_cast<int>(c_.G),
                .chunk = c_.chunk,
                .dt_min = c_.dt_min,
                .dt_max = c_.dt_max,
                .xBC_stride = conv,
                .dt_stride = projection,
                .x = s.xBC,
                .B = s.xBC + DI,
                .C = s.xBC + DI + GN,
                .dt = s.zxBCdt + DI + conv,
                .dt_bias = block.dt_bias.data(),
                .A = block.A.data(),
                .skip = block.skip.data(),
                .h = states.array(2 * index + 1),
                .y = s.v},
               stream);
}

}  // namespace

std::unique_ptr<const Model> load_mamba2(Checkpoint& checkpoint, Backend& backend,
                                         const LoadOptions& options,
                                         const Checkpoint::Progress& progress) {
  return std::make_unique<Mamba2>(checkpoint, backend, options, progress);
}

}  // namespace recurve
