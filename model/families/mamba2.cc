// Mamba-2: blocks of one multi-head state space each. Checkpoints as transformers writes them
// (models/mamba2; Mamba-Codestral among them), and with the names and the config of
// state-spaces/mamba (mamba_ssm/models/mixer_seq_simple.py, modules/mamba2.py).
// The gated norm is over each group, as in mamba_ssm. transformers norms over all groups together,
// which gives other logits where there is more than one.
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

#include "kernels/fusion.h"
#include "model/families/mamba_common.h"
#include "model/layers/decay.h"
#include "model/layers/required_ops.h"
#include "model/load_model.h"

namespace recurve {
namespace {

struct Mamba2Config : StateSpaceConfig {
  int64_t DI, H, P, G;
  float gate_eps, dt_min, dt_max;

  int64_t conv_width() const { return DI + 2 * G * N; }
  int64_t projection_width() const { return DI + conv_width() + H; }
};

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

void read_limits(ConfigReader& read, const nlohmann::json& config, const char* key,
                 Mamba2Config& c) {
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
void read_mixer(ConfigReader& read, const nlohmann::json& config, Mamba2Config& c) {
  read_mixer_sizes(read, 128, c);
  const bool original = c.original;
  c.P = read.optional_int(mixer_key(c, "headdim", "head_dim"), 64, 1, 1 << 16);
  c.G = read.optional_int(mixer_key(c, "ngroups", "n_groups"), original ? 1 : 8, 1, 1 << 16);
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

void read_original_mixer(const nlohmann::json& mixer, const std::string& file, Mamba2Config& c) {
  ConfigReader read(mixer, file + ": ssm_cfg");
  read_mixer(read, mixer, c);
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

Mamba2Config read_mamba2_config(const Checkpoint& checkpoint) {
  const nlohmann::json& config = checkpoint.config();
  ConfigReader read(config, checkpoint.config_file());
  Mamba2Config c{};
  read_outside(read, !has_lm_head(checkpoint), c);
  // mamba_ssm's gated norm has a separate epsilon, which no config sets.
  c.gate_eps = c.original ? 1e-5f : c.eps;
  if (c.original) {
    read_original_mixer(ssm_cfg(read, config), checkpoint.config_file(), c);
  } else {
    read_mixer(read, config, c);
    read.must_be({"intermediate_size", "d_inner"}, c.DI);
    read.must_be("num_heads", c.H);
    read.must_be("ssm_cfg", nlohmann::json{{"layer", "Mamba2"}});
  }
  // norm_before_gate: Codestral's config has true although its gate comes first; its code reads
  // neither this nor time_step_rank.
  read.ignore({"norm_before_gate", "time_step_rank"});
  finish_state_space(read);
  return c;
}

struct Mamba2Block {
  VectorWeights norm;       // (D)
  LinearWeights in;         // (2 DI + 2 G N + H, D): z, x, B, C, dt
  VectorWeights conv;       // (DI + 2 G N, width)
  VectorWeights conv_bias;  // (DI + 2 G N), or empty
  VectorWeights dt_bias;    // (H)
  VectorWeights A;          // (H)
  VectorWeights skip;       // (H)
  VectorWeights gate_norm;  // (DI)
  LinearWeights out;        // (D, DI)

  Residual::Reader reader() const { return {in.matrix(), &norm}; }
};

class Mamba2 final : public StateSpaceModel {
 public:
  Mamba2(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
         const Checkpoint::Progress& progress);

  StateLayout state_layout() const override;
  size_t arena_bytes(const StepLimits& limits) const override;
  void forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
               float* logits) const override;

 private:
  // Activations of one step.
  struct Scratch {
    Residual& x;
    float* zxBCdt;  // (rows, projection_width)
    float* xBC;     // (rows, conv_width) after the convolution
    float* v;       // (rows, H, P) out of the state space, gated
    float* picked;  // (logits, D)
  };
  Mamba2Block load_block(Checkpoint& checkpoint, Backend& backend, const std::string& prefix,
                         const WeightFormats& formats) const;
  // next: the layer that reads x after it.
  void mixer(const Mamba2Block& block, size_t index, const Ragged& seqs, const StatePool& states,
             const Scratch& scratch, const Residual::Reader& next, Stream& stream) const;
  // Gives what it began of the norm after it.
  DeferredRmsNorm state_space(const Mamba2Block& block, size_t index, const Ragged& seqs,
                              const StatePool& states, const Scratch& scratch,
                              Stream& stream) const;
  void norm_groups(const Mamba2Block& block, int rows, const Scratch& scratch,
                   const Activations& normed, Stream& stream) const;
  WeightTally blocks_tally() const;

  Mamba2Config c_;
  std::vector<Mamba2Block> blocks_;
};

Mamba2::Mamba2(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
               const Checkpoint::Progress& progress)
    : StateSpaceModel(backend), c_(read_mamba2_config(checkpoint)) {
  require_ops(backend, "mamba2", {"embed", "gather_rows", "linear", "causal_conv1d", "ssd"});
  if (c_.G > 1) require_ops(backend, "mamba2", {"gated_rms_norm"});
  c_.state = require_state(backend, "mamba2", "ssd", options.state);
  if (options.chunk > 0) c_.chunk = options.chunk;
  require_sizes(backend, "mamba2",
                SsdArgs{.H = static_cast<int>(c_.H),
                        .P = static_cast<int>(c_.P),
                        .N = static_cast<int>(c_.N),
                        .G = static_cast<int>(c_.G),
                        .chunk = c_.chunk,
                        .h = {nullptr, c_.state}});
  const std::string prefix = load_outside(c_, checkpoint, backend, options.weights);
  for (int64_t b = 0; b < c_.layers; ++b) {
    blocks_.push_back(
        load_block(checkpoint, backend, fmt::format("{}layers.{}.", prefix, b), options.weights));
  }
  checkpoint.finish(progress);
  fill_info(c_, checkpoint, blocks_tally(), "mamba2",
            fmt::format("{} blocks, width {}, {} heads of {} x {} in {} {}", c_.layers, c_.D, c_.H,
                        c_.P, c_.N, c_.G, c_.G == 1 ? "group" : "groups"));
}

Mamba2Block Mamba2::load_block(Checkpoint& checkpoint, Backend& backend, const std::string& prefix,
                               const WeightFormats& formats) const {
  const std::string m = prefix + "mixer.";
  const int64_t conv = c_.conv_width();
  const auto vector = [&](const std::string& name, std::vector<Shape> shapes) {
    return VectorWeights::load(backend, checkpoint, name, shapes);
  };
  const auto linear = [&](const std::string& name, int64_t N, int64_t K) {
    const std::string bias_name = c_.bias ? m + name + ".bias" : "";
    return LinearWeights::load(backend, checkpoint, {{m + name + ".weight", N, bias_name}}, K,
                               formats.linear);
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

WeightTally Mamba2::blocks_tally() const {
  WeightTally tally;
  for (const Mamba2Block& b : blocks_) {
    tally.add(b.in);
    tally.add(b.out);
    for (const VectorWeights* weights :
         {&b.norm, &b.conv, &b.conv_bias, &b.dt_bias, &b.A, &b.skip, &b.gate_norm}) {
      tally.add(*weights);
    }
  }
  return tally;
}

StateLayout Mamba2::state_layout() const {
  StateLayout layout;
  for (int b = 0; b < static_cast<int>(c_.layers); ++b) {
    layout.arrays.push_back({.name = "conv", .layer = b, .shape = {c_.conv_width(), c_.width - 1}});
    layout.arrays.push_back(
        {.name = "h", .layer = b, .dtype = c_.state, .shape = {c_.H, c_.P, c_.N}});
  }
  return layout;
}

size_t Mamba2::arena_bytes(const StepLimits& limits) const {
  const auto bytes_for = [](int count, int64_t width) {
    return Arena::bytes_for(static_cast<size_t>(count) * static_cast<size_t>(width));
  };
  size_t bytes = Residual::bytes_for(kernels_, limits.rows, c_.D) + bytes_for(limits.logits, c_.D);
  for (const int64_t width : {c_.projection_width(), c_.conv_width(), c_.DI}) {
    bytes += bytes_for(limits.rows, width);  // Scratch
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
  Residual x(kernels_, arena, rows, c_.D);
  const Scratch s{.x = x,
                  .zxBCdt = take(rows, c_.projection_width()),
                  .xBC = take(rows, c_.conv_width()),
                  .v = take(rows, c_.DI),
                  .picked = take(batch.num_logits, c_.D)};

  const auto mix = [&](size_t b, const Residual::Reader& next) {
    mixer(blocks_[b], b, batch.seqs, states, s, next, stream);
  };
  forward_through(blocks_, mix, c_, batch, x, s.picked, logits, stream);
}

void Mamba2::mixer(const Mamba2Block& block, size_t index, const Ragged& seqs,
                   const StatePool& states, const Scratch& s, const Residual::Reader& next,
                   Stream& stream) const {
  const int rows = seqs.rows;
  linear_conv(kernels_, s.x.read(block.reader(), c_.eps, {.bias = block.in.bias(), .y = s.zxBCdt}),
              {.seqs = seqs,
               .D = static_cast<int>(c_.conv_width()),
               .width = static_cast<int>(c_.width),
               .silu = true,
               .x_stride = static_cast<int>(c_.projection_width()),
               .x = s.zxBCdt + c_.DI,
               .w = block.conv.data(),
               .bias = block.conv_bias.data(),
               .state = states.array(2 * index),
               .y = s.xBC},
              stream);
  const bool groups = c_.G > 1;  // else the norm is of the whole row
  const DeferredRmsNorm deferred = state_space(block, index, seqs, states, s, stream);
  Activations v{.f32 = s.v};
  if (groups) {  // the output of the convolution has been read
    v = rows_for(kernels_, block.out.matrix(), s.v, s.xBC, c_.conv_width());
    norm_groups(block, rows, s, v, stream);
  }
  kernels_.linear(s.x.add({.W = block.out.matrix(),
                           .bias = block.out.bias(),
                           .x = v.f32,
                           .norm = groups ? nullptr : block.gate_norm.data(),
                           .norm_eps = c_.gate_eps,
                           .x_bf16 = v.bf16,
                           .deferred = deferred},
                          next),
                  stream);
}

// normed from s.v.
void Mamba2::norm_groups(const Mamba2Block& block, int rows, const Scratch& s,
                         const Activations& normed, Stream& stream) const {
  const int DI = static_cast<int>(c_.DI);
  kernels_.gated_rms_norm({.rows = rows,
                           .D = DI,
                           .G = static_cast<int>(c_.G),
                           .eps = c_.gate_eps,
                           .x_stride = DI,
                           .z_stride = 0,
                           .y_stride = DI,
                           .x = s.v,
                           .z = nullptr,
                           .w = block.gate_norm.data(),
                           .y = normed.f32,
                           .y_bf16 = normed.bf16},
                          stream);
}

// s.v, gated, from s.zxBCdt and s.xBC; or, where the norm after it is of whole rows and can be
// deferred to the layer that reads them, what is left for that layer, in the place of s.v.
DeferredRmsNorm Mamba2::state_space(const Mamba2Block& block, size_t index, const Ragged& seqs,
                                    const StatePool& states, const Scratch& s,
                                    Stream& stream) const {
  const int DI = static_cast<int>(c_.DI), GN = static_cast<int>(c_.G * c_.N);
  const int conv = static_cast<int>(c_.conv_width());
  const int projection = static_cast<int>(c_.projection_width());
  SsdArgs args{.seqs = seqs,
               .H = static_cast<int>(c_.H),
               .P = static_cast<int>(c_.P),
               .N = static_cast<int>(c_.N),
               .G = static_cast<int>(c_.G),
               .chunk = c_.chunk,
               .dt_min = c_.dt_min,
               .dt_max = c_.dt_max,
               .xBC_stride = conv,
               .dt_stride = projection,
               .z_stride = projection,
               .x = s.xBC,
               .B = s.xBC + DI,
               .C = s.xBC + DI + GN,
               .dt = s.zxBCdt + DI + conv,
               .z = s.zxBCdt,
               .dt_bias = block.dt_bias.data(),
               .A = block.A.data(),
               .skip = block.skip.data(),
               .h = states.data(2 * index + 1),
               .y = s.v};
  DeferredRmsNorm deferred;
  if (c_.G == 1) {
    deferred = defer_norm(kernels_, args, block.out.matrix(), block.gate_norm.data(), s.v);
  }
  kernels_.ssd(args, stream);
  return deferred;
}

}  // namespace

std::unique_ptr<const Model> load_mamba2(Checkpoint& checkpoint, Backend& backend,
                                         const LoadOptions& options,
                                         const Checkpoint::Progress& progress) {
  return std::make_unique<Mamba2>(checkpoint, backend, options, progress);
}

}  // namespace recurve
