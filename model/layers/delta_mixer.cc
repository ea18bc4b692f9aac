#include "model/layers/delta_mixer.h"

#include <cmath>
#include <limits>

#include "kernels/fusion.h"
#include "model/layers/required_ops.h"

namespace recurve {
namespace {

// fla's l2 norm of queries and keys, modules/l2norm.py.
constexpr float kLengthEps = 1e-6f;

// One call of the mixer.
class DeltaMixerStep {
 public:
  DeltaMixerStep(const DeltaMixerConfig& config, const DeltaMixerWeights& weights,
                 const Ragged& seqs, const DeltaMixerState& state, const DeltaMixerScratch& scratch,
                 const Kernels& kernels, Stream& stream)
      : c_(config),
        w_(weights),
        seqs_(seqs),
        state_(state),
        s_(scratch),
        kernels_(kernels),
        stream_(stream) {}

  void run(Residual& x, const Residual::Reader& next) const {
    kernels_.linear(x.read(w_.reader(), c_.eps, {.y = s_.projected}), stream_);
    float* q = mix();
    gates(q);
    recur(q);
    const Activations o = rows_for(kernels_, w_.out.matrix(), s_.o, s_.spare, s_.spare_width);
    kernels_.head_rms_norm({.rows = seqs_.rows,
                            .H = static_cast<int>(c_.H),
                            .DV = static_cast<int>(c_.DV),
                            .eps = c_.eps,
                            .gate_stride = static_cast<int>(c_.projected()),
                            .x = s_.o,
                            .w = w_.out_norm.data(),
                            .gate = c_.output_gate ? s_.projected + c_.mixed() : nullptr,
                            .y = o.f32,
                            .y_bf16 = o.bf16,
                            .f = c_.gate},
                           stream_);
    kernels_.linear(x.add({.W = w_.out.matrix(), .x = o.f32, .x_bf16 = o.bf16}, next), stream_);
  }

 private:
  int stride() const { return static_cast<int>(c_.width > 0 ? c_.mixed() : c_.projected()); }

  void activate(Activation f, int64_t width, float* x) const {
    if (f == Activation::kIdentity) return;
    kernels_.activation({.rows = seqs_.rows,
                         .width = static_cast<int>(width),
                         .f = f,
                         .scale = 1,
                         .floor = -std::numeric_limits<float>::infinity(),
                         .x_stride = stride(),
                         .y_stride = stride(),
                         .x = x,
                         .y = x},
                        stream_);
  }

  // Queries, keys and values side by side, convolved and through their functions.
  float* mix() const {
    const bool together = c_.width > 0 && c_.activation == Activation::kSilu;
    if (c_.width > 0) {
      kernels_.causal_conv1d({.seqs = seqs_,
                              .D = static_cast<int>(c_.mixed()),
                              .width = static_cast<int>(c_.width),
                              .silu = together,
                              .x_stride = static_cast<int>(c_.projected()),
                              .x = s_.projected,
                              .w = w_.conv.data(),
                              .bias = nullptr,
                              .state = state_.conv,
                              .y = s_.mixed},
                             stream_);
    }
    float* q = c_.width > 0 ? s_.mixed : s_.projected;
    if (!together) {
      activate(c_.activation, 2 * c_.qk(), q);
      activate(Activation::kSilu, c_.out(), q + 2 * c_.qk());
    }
    return q;
  }

  void gates(float* q) const {
    const int projected = static_cast<int>(c_.projected());
    const float* b = s_.projected + c_.mixed() + (c_.output_gate ? c_.out() : 0);
    kernels_.delta_gate({.rows = seqs_.rows,
                         .H = static_cast<int>(c_.H),
                         .HK = static_cast<int>(c_.HK),
                         .DK = static_cast<int>(c_.DK),
                         .decays = c_.gated ? 1 : 0,
                         .norm = c_.norm,
                         .eps = kLengthEps,
                         .beta_scale = c_.beta_scale,
                         .qk_stride = stride(),
                         .b_stride = projected,
                         .a_stride = projected,
                         .b = c_.has_beta ? b : nullptr,
                         .a = c_.gated ? b + c_.H : nullptr,
                         .A = w_.A.data(),
                         .dt_bias = w_.dt_bias.data(),
                         .q = q,
                         .k = q + c_.qk(),
                         .beta = s_.beta,
                         .g = c_.gated ? s_.g : nullptr},
                        stream_);
  }

  void recur(const float* q) const {
    const int H = static_cast<int>(c_.H);
    kernels_.delta_rule({.seqs = seqs_,
                         .H = H,
                         .HK = static_cast<int>(c_.HK),
                         .DK = static_cast<int>(c_.DK),
                         .DV = static_cast<int>(c_.DV),
                         .chunk = c_.chunk,
                         .decay = c_.decay(),
                         .scale = 1.0f / std::sqrt(static_cast<float>(c_.DK)),
                         .q_stride = stride(),
                         .k_stride = stride(),
                         .v_stride = stride(),
                         .g_stride = c_.gated ? H : 0,
                         .beta_stride = H,
                         .q = q,
                         .k = q + c_.qk(),
                         .v = q + 2 * c_.qk(),
                         .g = c_.gated ? s_.g : nullptr,
                         .beta = s_.beta,
                         .S = state_.S,
                         .o = s_.o,
                         .bounded_beta = c_.bounded_beta()},
                        stream_);
  }

  const DeltaMixerConfig& c_;
  const DeltaMixerWeights& w_;
  const Ragged& seqs_;
  const DeltaMixerState& state_;
  const DeltaMixerScratch& s_;
  const Kernels& kernels_;
  Stream& stream_;
};

}  // namespace

void add_to(WeightTally& tally, const DeltaMixerWeights& w) {
  for (const LinearWeights* weights : {&w.projection, &w.out}) tally.add(*weights);
  for (const VectorWeights* weights : {&w.norm, &w.conv, &w.A, &w.dt_bias, &w.out_norm}) {
    tally.add(*weights);
  }
}

std::vector<int64_t> DeltaMixerScratch::widths(const DeltaMixerConfig& c) {
  return {c.projected(), c.width > 0 ? c.mixed() : 0, c.H, c.gated ? c.H : 0, c.out()};
}

void check_delta_mixer(const DeltaMixerConfig& c, Backend& backend, std::string_view family) {
  require_ops(backend, family,
              {"embed", "gather_rows", "linear", "head_rms_norm", "delta_gate", "delta_rule"});
  if (c.width > 0) require_ops(backend, family, {"causal_conv1d"});
  if (c.width == 0 || c.activation != Activation::kSilu) {
    require_ops(backend, family, {"activation"});
  }
  require_state(backend, family, "delta_rule", c.state);
  require_sizes(backend, family,
                DeltaRuleArgs{.H = static_cast<int>(c.H),
                              .HK = static_cast<int>(c.HK),
                              .DK = static_cast<int>(c.DK),
                              .DV = static_cast<int>(c.DV),
                              .chunk = c.chunk,
                              .decay = c.decay(),
                              .S = {nullptr, c.state},
                              .bounded_beta = c.bounded_beta()});
}

void add_arrays(const DeltaMixerConfig& c, int layer, StateLayout& layout) {
  layout.arrays.push_back(
      {.name = "S", .layer = layer, .dtype = c.state, .shape = {c.H, c.DK, c.DV}});
  if (c.width > 0) {
    layout.arrays.push_back({.name = "conv", .layer = layer, .shape = {c.mixed(), c.width - 1}});
  }
}

void delta_mixer(const DeltaMixerConfig& config, const DeltaMixerWeights& weights,
                 const Ragged& seqs, const DeltaMixerState& state, const DeltaMixerScratch& scratch,
                 Residual& x, const Residual::Reader& next, const Kernels& kernels,
                 Stream& stream) {
  DeltaMixerStep(config, weights, seqs, state, scratch, kernels, stream).run(x, next);
}

}  // namespace recurve
