// Mamba and Falcon Mamba: blocks of one selective state space each. Checkpoints as transformers
// writes them (models/mamba, models/falcon_mamba), and with the names and the config of
// state-spaces/mamba (mamba_ssm/models/mixer_seq_simple.py, modules/mamba_simple.py).
// Falcon Mamba takes the norm of dt, B and C, without weights, between x_proj and dt_proj: as its
// inference path does, not the fused training kernel, which norms dt after dt_proj.
#include <fmt/format.h>

#include "kernels/fusion.h"
#include "model/families/mamba_common.h"
#include "model/layers/decay.h"
#include "model/layers/required_ops.h"
#include "model/load_model.h"

namespace recurve {
namespace {

struct MambaConfig : StateSpaceConfig {
  int64_t DI, R;
  float mixer_eps;  // of the norms of dt, B and C; 0: there are none
};

// "auto" is hidden_size / 16, rounded up.
int64_t read_rank(ConfigReader& read, const nlohmann::json& config, const char* key, int64_t D) {
  const int64_t automatic = (D + 15) / 16;
  if (const auto at = config.find(key); at != config.end() && *at == "auto") {
    read.ignore({key});
    return automatic;
  }
  return read.optional_int(key, automatic, 1, 1 << 20);
}

// What state-spaces' config has under ssm_cfg; those of transformers have it at the top.
void read_mixer(ConfigReader& read, const nlohmann::json& config, MambaConfig& c) {
  read_mixer_sizes(read, 16, c);
  c.R = read_rank(read, config, c.original ? "dt_rank" : "time_step_rank", c.D);
  if (c.original || c.DI == 0) {
    c.DI = static_cast<int64_t>(static_cast<double>(c.D) *
                                read.optional_number("expand", 2, 1.0 / 64, 64));
  }
}

MambaConfig read_mamba_config(const Checkpoint& checkpoint, bool falcon) {
  const nlohmann::json& config = checkpoint.config();
  ConfigReader read(config, checkpoint.config_file());
  MambaConfig c{};
  read_outside(read, true, c);
  if (falcon) {
    c.mixer_eps = static_cast<float>(read.optional_number("mixer_rms_eps", 1e-6, 1e-30, 1));
  }
  // If intermediate_size is given, expand is ignored: Falcon Mamba 7B has 16 for 2.
  c.DI = read.optional_int({"intermediate_size", "d_inner"}, 0, 1, 1 << 20);
  if (c.original) {
    const nlohmann::json& mixer = ssm_cfg(read, config);
    ConfigReader read_ssm(mixer, checkpoint.config_file() + ": ssm_cfg");
    read_mixer(read_ssm, mixer, c);
    read_ssm.must_be("layer", "Mamba1");
    read_ssm.ignore({"dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor", "use_fast_path"});
    read_ssm.finish();
  } else {
    read_mixer(read, config, c);
    read.must_be("ssm_cfg", nlohmann::json::object());
  }
  if (c.DI == 0) read.fail("expand", "at least one inner channel", "none");
  // expand: see above. The others choose code, not what it computes.
  read.ignore({"expand", "use_mambapy", "use_falcon_mambapy", "use_associative_scan"});
  finish_state_space(read);
  return c;
}

struct MambaBlock {
  VectorWeights norm;       // (D)
  LinearWeights in;         // (2 DI, D): x, then z
  VectorWeights conv;       // (DI, width)
  VectorWeights conv_bias;  // (DI), or empty
  LinearWeights params;     // (R + 2 N, DI): dt, B, C
  LinearWeights dt;         // (DI, R)
  VectorWeights dt_bias;    // (DI)
  VectorWeights A;          // (DI, N)
  VectorWeights skip;       // (DI)
  LinearWeights out;        // (D, DI)

  Residual::Reader reader() const { return {in.matrix(), &norm}; }
};

class Mamba final : public StateSpaceModel {
 public:
  Mamba(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
        const Checkpoint::Progress& progress, bool falcon);

  StateLayout state_layout() const override;
  size_t arena_bytes(const StepLimits& limits) const override;
  void forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
               float* logits) const override;

 private:
  // Activations of one step.
  struct Scratch {
    Residual& x;
    float* xz;      // (rows, 2 DI)
    float* u;       // (rows, DI) after the convolution
    float* params;  // (rows, R + 2 N) of the state space
    float* scan;    // (rows, DI + R + 2 N) for the scan's own use
    float* v;       // (rows, DI) out of the state space
    float* picked;  // (logits, D)
  };
  MambaBlock load_block(Checkpoint& checkpoint, Backend& backend, const std::string& prefix,
                        const WeightFormats& formats) const;
  // next: the layer that reads x after it.
  void mixer(const MambaBlock& block, size_t index, const Ragged& seqs, const StatePool& states,
             const Scratch& scratch, const Residual::Reader& next, Stream& stream) const;
  // y: what comes out of it.
  void state_space(const MambaBlock& block, StateData h, const Ragged& seqs, const Scratch& scratch,
                   const Activations& y, Stream& stream) const;
  WeightTally blocks_tally() const;

  MambaConfig c_;
  std::vector<MambaBlock> blocks_;
};

Mamba::Mamba(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
             const Checkpoint::Progress& progress, bool falcon)
    : StateSpaceModel(backend), c_(read_mamba_config(checkpoint, falcon)) {
  const std::string family = falcon ? "falcon_mamba" : "mamba";
  require_ops(backend, family,
              {"embed", "gather_rows", "linear", "causal_conv1d", "selective_scan"});
  c_.state = require_state(backend, family, "selective_scan", options.state);
  if (options.chunk > 0) c_.chunk = options.chunk;
  require_sizes(backend, family,
                SelectiveScanArgs{.D = static_cast<int>(c_.DI),
                                  .N = static_cast<int>(c_.N),
                                  .R = static_cast<int>(c_.R),
                                  .chunk = c_.chunk,
                                  .norm_eps = c_.mixer_eps,
                                  .h = {nullptr, c_.state}});
  const std::string prefix = load_outside(c_, checkpoint, backend, options.weights);
  for (int64_t b = 0; b < c_.layers; ++b) {
    blocks_.push_back(
        load_block(checkpoint, backend, fmt::format("{}layers.{}.", prefix, b), options.weights));
  }
  checkpoint.finish(progress);
  fill_info(
      c_, checkpoint, blocks_tally(), family,
      fmt::format("{} blocks, width {}, {} channels of {} states", c_.layers, c_.D, c_.DI, c_.N));
}

MambaBlock Mamba::load_block(Checkpoint& checkpoint, Backend& backend, const std::string& prefix,
                             const WeightFormats& formats) const {
  const std::string m = prefix + "mixer.";
  const auto vector = [&](const std::string& name, std::vector<Shape> shapes) {
    return VectorWeights::load(backend, checkpoint, name, shapes);
  };
  const auto linear = [&](const std::string& name, int64_t N, int64_t K, bool bias) {
    const std::string bias_name = bias ? m + name + ".bias" : "";
    return LinearWeights::load(backend, checkpoint, {{m + name + ".weight", N, bias_name}}, K,
                               formats.linear);
  };
  return {.norm = vector(prefix + "norm.weight", {{c_.D}}),
          .in = linear("in_proj", 2 * c_.DI, c_.D, c_.bias),
          .conv = vector(m + "conv1d.weight", {{c_.DI, 1, c_.width}, {c_.DI, c_.width}}),
          .conv_bias = c_.conv_bias ? vector(m + "conv1d.bias", {{c_.DI}}) : VectorWeights(),
          .params = linear("x_proj", c_.R + 2 * c_.N, c_.DI, false),
          .dt = LinearWeights::load(backend, checkpoint, {{m + "dt_proj.weight", c_.DI}}, c_.R,
                                    formats.others),
          .dt_bias = vector(m + "dt_proj.bias", {{c_.DI}}),
          .A = load_decay(backend, checkpoint, m + "A_log", {c_.DI, c_.N}),
          .skip = vector(m + "D", {{c_.DI}}),
          .out = linear("out_proj", c_.D, c_.DI, c_.bias)};
}

WeightTally Mamba::blocks_tally() const {
  WeightTally tally;
  for (const MambaBlock& b : blocks_) {
    for (const LinearWeights* weights : {&b.in, &b.params, &b.dt, &b.out}) tally.add(*weights);
    for (const VectorWeights* weights :
         {&b.norm, &b.conv, &b.conv_bias, &b.dt_bias, &b.A, &b.skip}) {
      tally.add(*weights);
    }
  }
  return tally;
}

StateLayout Mamba::state_layout() const {
  StateLayout layout;
  for (int b = 0; b < static_cast<int>(c_.layers); ++b) {
    layout.arrays.push_back({.name = "conv", .layer = b, .shape = {c_.DI, c_.width - 1}});
    layout.arrays.push_back({.name = "h", .layer = b, .dtype = c_.state, .shape = {c_.DI, c_.N}});
  }
  return layout;
}

size_t Mamba::arena_bytes(const StepLimits& limits) const {
  const auto bytes_for = [](int count, int64_t width) {
    return Arena::bytes_for(static_cast<size_t>(count) * static_cast<size_t>(width));
  };
  size_t bytes = Residual::bytes_for(kernels_, limits.rows, c_.D) + bytes_for(limits.logits, c_.D);
  const int64_t params = c_.R + 2 * c_.N;
  for (const int64_t width : {2 * c_.DI, c_.DI, params, c_.DI + params, c_.DI}) {  // Scratch
    bytes += bytes_for(limits.rows, width);
  }
  return bytes;
}

void Mamba::forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
                    float* logits) const {
  const int rows = batch.seqs.rows;
  const auto take = [&](int count, int64_t width) {
    return arena.floats(static_cast<size_t>(count) * static_cast<size_t>(width));
  };
  arena.reset();
  Residual x(kernels_, arena, rows, c_.D);
  const Scratch s{.x = x,
                  .xz = take(rows, 2 * c_.DI),
                  .u = take(rows, c_.DI),
                  .params = take(rows, c_.R + 2 * c_.N),
                  .scan = take(rows, c_.DI + c_.R + 2 * c_.N),
                  .v = take(rows, c_.DI),
                  .picked = take(batch.num_logits, c_.D)};

  const auto mix = [&](size_t b, const Residual::Reader& next) {
    mixer(blocks_[b], b, batch.seqs, states, s, next, stream);
  };
  forward_through(blocks_, mix, c_, batch, x, s.picked, logits, stream);
}

void Mamba::mixer(const MambaBlock& block, size_t index, const Ragged& seqs,
                  const StatePool& states, const Scratch& s, const Residual::Reader& next,
                  Stream& stream) const {
  const int rows = seqs.rows, DI = static_cast<int>(c_.DI);
  // These are the rows of the convolution and of the state space; when v is written, u has been
  // multiplied.
  const Activations u = rows_for(kernels_, block.params.matrix(), s.u, s.v, DI);
  const Activations v = rows_for(kernels_, block.out.matrix(), s.v, s.v, DI);
  linear_conv(kernels_, s.x.read(block.reader(), c_.eps, {.bias = block.in.bias(), .y = s.xz}),
              {.seqs = seqs,
               .D = DI,
               .width = static_cast<int>(c_.width),
               .silu = true,
               .x_stride = 2 * DI,
               .x = s.xz,
               .w = block.conv.data(),
               .bias = block.conv_bias.data(),
               .state = states.array(2 * index),
               .y = u.f32,
               .y_bf16 = u.bf16},
              stream);
  kernels_.linear(
      {.rows = rows, .W = block.params.matrix(), .x = u.f32, .y = s.params, .x_bf16 = u.bf16},
      stream);
  state_space(block, states.data(2 * index + 1), seqs, s, v, stream);
  kernels_.linear(
      s.x.add({.W = block.out.matrix(), .bias = block.out.bias(), .x = v.f32, .x_bf16 = v.bf16},
              next),
      stream);
}

// y from s.u, s.params and the gate.
void Mamba::state_space(const MambaBlock& block, StateData h, const Ragged& seqs, const Scratch& s,
                        const Activations& y, Stream& stream) const {
  const int DI = static_cast<int>(c_.DI), N = static_cast<int>(c_.N);
  const int R = static_cast<int>(c_.R);
  kernels_.selective_scan({.seqs = seqs,
                           .D = DI,
                           .N = N,
                           .R = R,
                           .chunk = c_.chunk,
                           .norm_eps = c_.mixer_eps,
                           .x_stride = DI,
                           .params_stride = R + 2 * N,
                           .z_stride = 2 * DI,
                           .x = s.u,
                           .params = s.params,
                           .z = s.xz + DI,
                           .dt_proj = block.dt.matrix(),
                           .dt_bias = block.dt_bias.data(),
                           .A = block.A.data(),
                           .skip = block.skip.data(),
                           .h = h,
                           .scratch = s.scan,
                           .y = y.f32,
                           .y_bf16 = y.bf16},
                          stream);
}

}  // namespace

// Falcon Mamba is Mamba with norms of dt, B and C.
std::unique_ptr<const Model> load_mamba(Checkpoint& checkpoint, Backend& backend,
                                        const LoadOptions& options,
                                        const Checkpoint::Progress& progress) {
  const nlohmann::json& config = checkpoint.config();
  const bool falcon = config.contains("model_type") && config["model_type"] == "falcon_mamba";
  return std::make_unique<Mamba>(checkpoint, backend, options, progress, falcon);
}

}  // namespace recurve
