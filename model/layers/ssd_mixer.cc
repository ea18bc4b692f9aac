#include "model/layers/ssd_mixer.h"

#include <cmath>
#include <limits>
#include <utility>

#include "kernels/fusion.h"
#include "model/layers/decay.h"
#include "model/layers/required_ops.h"
#include "model/weights/config_reader.h"
#include "model/weights/convert.h"

namespace recurve {
namespace {

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

// One call of the mixer.
class SsdMixerStep {
 public:
  SsdMixerStep(const SsdMixerConfig& config, const SsdMixerWeights& weights, const Ragged& seqs,
               const SsdMixerState& state, const SsdMixerScratch& scratch, const Kernels& kernels,
               Stream& stream)
      : c_(config),
        w_(weights),
        seqs_(seqs),
        state_(state),
        s_(scratch),
        kernels_(kernels),
        stream_(stream) {}

  void run(Residual& x, const Residual::Reader& next) const {
    linear_conv(kernels_, x.read(w_.reader(), c_.eps, {.bias = w_.in.bias(), .y = s_.zxBCdt}),
                {.seqs = seqs_,
                 .D = static_cast<int>(c_.conv_width()),
                 .width = static_cast<int>(c_.width),
                 .silu = true,
                 .x_stride = static_cast<int>(c_.projected()),
                 .x = s_.zxBCdt + c_.inner(),
                 .w = w_.conv.data(),
                 .bias = w_.conv_bias.data(),
                 .state = state_.conv,
                 .y = s_.xBC},
                stream_);
    if (c_.dt_scale != 1) scale_time_step();
    const DeferredRmsNorm deferred = state_space();
    Activations v{.f32 = s_.v};
    if (!c_.row_norm()) {  // the output of the convolution has been read
      v = rows_for(kernels_, w_.out.matrix(), s_.v, s_.xBC, c_.conv_width());
      c_.gate_norm ? norm_groups(v) : scale_out(v);
    }
    kernels_.linear(x.add({.W = w_.out.matrix(),
                           .bias = w_.out.bias(),
                           .x = v.f32,
                           .norm = c_.row_norm() ? w_.gate_norm.data() : nullptr,
                           .norm_eps = c_.gate_eps,
                           .x_bf16 = v.bf16,
                           .deferred = deferred},
                          next),
                    stream_);
  }

 private:
  void scale_time_step() const {
    float* const dt = s_.zxBCdt + c_.inner() + c_.conv_width();
    scale(static_cast<int>(c_.H), c_.dt_scale, static_cast<int>(c_.projected()), dt, {.f32 = dt});
  }
  // scaled from s_.v.
  void scale_out(const Activations& scaled) const {
    const int inner = static_cast<int>(c_.inner());
    scale(inner, c_.out_scale, inner, s_.v, scaled);
  }
  void scale(int width, float scale, int stride, const float* x, const Activations& y) const {
    kernels_.activation({.rows = seqs_.rows,
                         .width = width,
                         .f = Activation::kIdentity,
                         .scale = scale,
                         .floor = -std::numeric_limits<float>::infinity(),
                         .x_stride = stride,
                         .y_stride = stride,
                         .x = x,
                         .y = y.f32,
                         .y_bf16 = y.bf16},
                        stream_);
  }

  // normed from s_.v.
  void norm_groups(const Activations& normed) const {
    const int inner = static_cast<int>(c_.inner());
    kernels_.gated_rms_norm({.rows = seqs_.rows,
                             .D = inner,
                             .G = static_cast<int>(c_.G),
                             .eps = c_.gate_eps,
                             .x_stride = inner,
                             .z_stride = 0,
                             .y_stride = inner,
                             .x = s_.v,
                             .z = nullptr,
                             .w = w_.gate_norm.data(),
                             .y = normed.f32,
                             .y_bf16 = normed.bf16},
                            stream_);
  }

  // s_.v, gated, from s_.zxBCdt and s_.xBC; or, where the norm after it is of whole rows and can be
  // deferred to the layer that reads them, what is left for that layer, in the place of s_.v.
  DeferredRmsNorm state_space() const {
    const int inner = static_cast<int>(c_.inner()), GN = static_cast<int>(c_.G * c_.N);
    const int conv = static_cast<int>(c_.conv_width());
    const int projection = static_cast<int>(c_.projected());
    SsdArgs args{.seqs = seqs_,
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
                 .x = s_.xBC,
                 .B = s_.xBC + inner,
                 .C = s_.xBC + inner + GN,
                 .dt = s_.zxBCdt + inner + conv,
                 .z = s_.zxBCdt,
                 .dt_bias = w_.dt_bias.data(),
                 .A = w_.A.data(),
                 .skip = w_.skip.data(),
                 .h = state_.h,
                 .y = s_.v,
                 .held = state_.held,
                 .held_u = state_.held_u,
                 .held_B = state_.held_B,
                 .held_a = state_.held_a};
    DeferredRmsNorm deferred;
    if (c_.row_norm()) {
      deferred = defer_norm(kernels_, args, w_.out.matrix(), w_.gate_norm.data(), s_.v);
    }
    kernels_.ssd(args, stream_);
    return deferred;
  }

  const SsdMixerConfig& c_;
  const SsdMixerWeights& w_;
  const Ragged& seqs_;
  const SsdMixerState& state_;
  const SsdMixerScratch& s_;
  const Kernels& kernels_;
  Stream& stream_;
};

// conv: (conv_width, width).
void scale_convolution(const SsdMixerConfig& c, std::vector<float>& conv) {
  const int64_t GN = c.G * c.N;
  for (size_t i = 0; i < conv.size(); ++i) {
    const int64_t channel = static_cast<int64_t>(i) / c.width;
    const bool x = channel < c.inner(), B = channel < c.inner() + GN;
    conv[i] *= x ? c.x_scale : B ? c.B_scale : c.C_scale;
  }
}

}  // namespace

SsdMixerWeights load_ssd_mixer(const SsdMixerConfig& c, Checkpoint& checkpoint, Backend& backend,
                               const std::string& prefix, VectorWeights norm,
                               const WeightFormats& formats) {
  const int64_t conv = c.conv_width();
  const auto vector = [&](const char* name, std::vector<Shape> shapes) {
    return VectorWeights::load(backend, checkpoint, prefix + name, shapes);
  };
  const auto values = [&](const char* name, const std::vector<Shape>& shapes) {
    return host_values(checkpoint.take_any({prefix + name}, shapes));
  };
  std::vector<float> taps = values("conv1d.weight", {{conv, 1, c.width}, {conv, c.width}});
  scale_convolution(c, taps);
  std::vector<float> gate_norm;
  if (c.gate_norm) gate_norm = values("norm.weight", {{c.inner()}});
  for (float& value : gate_norm) value *= c.out_scale;
  const auto linear = [&](const std::string& name, int64_t N, int64_t K) {
    const std::string bias_name = c.bias ? prefix + name + ".bias" : "";
    return LinearWeights::load(backend, checkpoint, {{prefix + name + ".weight", N, bias_name}}, K,
                               formats.linear);
  };
  return {.norm = std::move(norm),
          .in = linear("in_proj", c.projected(), c.D),
          .conv = VectorWeights::from(backend, taps),
          .conv_bias = c.conv_bias ? vector("conv1d.bias", {{conv}}) : VectorWeights(),
          .dt_bias = vector("dt_bias", {{c.H}}),
          .A = load_decay(backend, checkpoint, prefix + "A_log", {c.H}),
          .skip = vector("D", {{c.H}}),
          .gate_norm = c.gate_norm ? VectorWeights::from(backend, gate_norm) : VectorWeights(),
          .out = linear("out_proj", c.D, c.inner())};
}

void add_to(WeightTally& tally, const SsdMixerWeights& w) {
  tally.add(w.in);
  tally.add(w.out);
  for (const VectorWeights* weights :
       {&w.norm, &w.conv, &w.conv_bias, &w.dt_bias, &w.A, &w.skip, &w.gate_norm}) {
    tally.add(*weights);
  }
}

std::vector<int64_t> SsdMixerScratch::widths(const SsdMixerConfig& c) {
  return {c.projected(), c.conv_width(), c.inner()};
}

void check_ssd_mixer(const SsdMixerConfig& c, Backend& backend, std::string_view family) {
  require_ops(backend, family, {"embed", "gather_rows", "linear", "causal_conv1d", "ssd"});
  if (c.gate_norm && c.G > 1) require_ops(backend, family, {"gated_rms_norm"});
  if (!c.gate_norm || c.dt_scale != 1) require_ops(backend, family, {"activation"});
  require_state(backend, family, "ssd", c.state);
  require_every(backend, family, "ssd", c.written_every);
  require_sizes(backend, family,
                SsdArgs{.H = static_cast<int>(c.H),
                        .P = static_cast<int>(c.P),
                        .N = static_cast<int>(c.N),
                        .G = static_cast<int>(c.G),
                        .chunk = c.chunk,
                        .h = {nullptr, c.state}});
}

SsdMixerState SsdMixerState::of(const SsdMixerConfig& c, const StatePool& states, size_t first,
                                const HeldRows& held) {
  SsdMixerState state{.conv = states.array(first), .h = states.data(first + 1), .held = held};
  if (c.written_every > 1) {
    state.held_u = states.array(first + 2);
    state.held_B = states.array(first + 3);
    state.held_a = states.array(first + 4);
  }
  return state;
}

size_t state_arrays(const SsdMixerConfig& c) { return c.written_every > 1 ? 5 : 2; }

void add_arrays(const SsdMixerConfig& c, int layer, StateLayout& layout) {
  layout.arrays.push_back({.name = "conv", .layer = layer, .shape = {c.conv_width(), c.width - 1}});
  layout.arrays.push_back(
      {.name = "h", .layer = layer, .dtype = c.state, .shape = {c.H, c.P, c.N}});
  if (c.written_every == 1) return;
  layout.arrays.back().written_every = c.written_every;
  const int64_t rows = c.written_every - 1;
  const auto next_to_h = [&](const char* name, std::vector<int64_t> shape) {
    layout.arrays.push_back(
        {.name = name, .layer = layer, .shape = std::move(shape), .growth = StateGrowth::kRing});
  };
  next_to_h("u", {rows, c.H, c.P});
  next_to_h("B", {rows, c.G, c.N});
  next_to_h("a", {c.H, rows});
}

void ssd_mixer(const SsdMixerConfig& config, const SsdMixerWeights& weights, const Ragged& seqs,
               const SsdMixerState& state, const SsdMixerScratch& scratch, Residual& x,
               const Residual::Reader& next, const Kernels& kernels, Stream& stream) {
  SsdMixerStep(config, weights, seqs, state, scratch, kernels, stream).run(x, next);
}

void read_time_step_limits(ConfigReader& read, const nlohmann::json& config, const char* key,
                           SsdMixerConfig& c) {
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

}  // namespace recurve
