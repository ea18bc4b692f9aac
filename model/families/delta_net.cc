// DeltaNet and Gated DeltaNet as flash-linear-attention has them: a mixer whose state is a matrix a
// head, of which each token replaces the part along its key (kernels/ops/delta_rule.h), and a gated
// feed-forward layer. Source: fla layers/{delta_net,gated_deltanet}.py, modules/mlp.py.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "kernels/fusion.h"
#include "model/families/delta_net_block.h"
#include "model/layers/head.h"
#include "model/layers/required_ops.h"
#include "model/load_model.h"
#include "model/special_ids.h"

namespace recurve {
namespace delta_net {
namespace {

// fla's l2 norm of queries and keys, modules/l2norm.py.
constexpr float kLengthEps = 1e-6f;

class DeltaNet final : public Model {
 public:
  DeltaNet(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
           const Checkpoint::Progress& progress);

  const ModelInfo& info() const override { return info_; }
  StateLayout state_layout() const override;
  size_t arena_bytes(const StepLimits& limits) const override;
  void forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
               float* logits) const override;

 private:
  // Activations of one step.
  struct Scratch {
    Residual& x;
    float* projected;  // (rows, projected)
    float* mixed;      // (rows, mixed) after the convolution, if there is one
    float* beta;       // (rows, H)
    float* g;          // (rows, H) log decays, if there are any
    float* o;          // (rows, H DV)
    float* hidden;     // (rows, F)
    float* picked;     // (logits, D)
  };
  std::vector<int64_t> widths() const;
  Scratch take_scratch(Arena& arena, int rows, int logits, Residual& x) const;
  size_t states_a_block() const { return c_.width > 0 ? 2 : 1; }
  void check(Backend& backend) const;
  void fill_info(const Checkpoint& checkpoint);

  void mixer(const Block& block, size_t index, const Ragged& seqs, const StatePool& states,
             const Scratch& scratch, Stream& stream) const;
  float* mix(const Block& block, size_t index, const Ragged& seqs, const StatePool& states,
             const Scratch& scratch, Stream& stream) const;
  void activate(Activation f, int rows, int64_t width, float* x, Stream& stream) const;
  void gates(const Block& block, int rows, const Scratch& scratch, float* q, Stream& stream) const;
  void recur(size_t index, const Ragged& seqs, const StatePool& states, const Scratch& scratch,
             const float* q, Stream& stream) const;

  int stride() const { return static_cast<int>(c_.width > 0 ? c_.mixed() : c_.projected()); }

  Config c_;
  const Kernels& kernels_;
  TokenWeights tokens_;
  std::vector<Block> blocks_;
  ModelInfo info_;
};

DeltaNet::DeltaNet(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
                   const Checkpoint::Progress& progress)
    : c_(read_config(checkpoint)), kernels_(backend.kernels()) {
  if (options.chunk > 0) c_.chunk = options.chunk;
  c_.state = options.state;
  check(backend);
  const std::string prefix = checkpoint.detect_prefix({"model.", ""}, "norm.weight");
  tokens_ = load_token_weights(backend, checkpoint, prefix, "norm.weight", c_.vocab, c_.D, c_.tied,
                               options.weights);
  for (int64_t b = 0; b < c_.blocks; ++b) {
    blocks_.push_back(load_block(c_, checkpoint, backend, fmt::format("{}layers.{}.", prefix, b),
                                 options.weights));
  }
  checkpoint.finish(progress);
  fill_info(checkpoint);
}

void DeltaNet::check(Backend& backend) const {
  require_ops(backend, c_.type,
              {"embed", "gather_rows", "linear", "head_rms_norm", "delta_gate", "delta_rule"});
  if (c_.width > 0) require_ops(backend, c_.type, {"causal_conv1d"});
  if (c_.width == 0 || c_.activation != Activation::kSilu) {
    require_ops(backend, c_.type, {"activation"});
  }
  require_state(backend, c_.type, "delta_rule", c_.state);
  require_sizes(backend, c_.type,
                DeltaRuleArgs{.H = static_cast<int>(c_.H),
                              .HK = static_cast<int>(c_.HK),
                              .DK = static_cast<int>(c_.DK),
                              .DV = static_cast<int>(c_.DV),
                              .chunk = c_.chunk,
                              .decay = c_.decay(),
                              .S = {nullptr, c_.state},
                              .bounded_beta = c_.bounded_beta()});
}

void DeltaNet::fill_info(const Checkpoint& checkpoint) {
  WeightTally tally;
  tally.add(tokens_);
  for (const Block& block : blocks_) add_to(tally, block);
  info_.parameters = tally.parameters;
  info_.weight_bytes = tally.bytes;
  info_.family = c_.type;
  info_.description = fmt::format("{} blocks, width {}, {} heads of {} x {}, feed-forward {}",
                                  c_.blocks, c_.D, c_.H, c_.DK, c_.DV, c_.F);
  info_.head = tokens_.head_source;
  info_.vocab = c_.vocab;
  info_.chunk = c_.chunk;
  const SpecialIds ids = read_special_ids(checkpoint);
  info_.bos = ids.bos;
  info_.eos = ids.eos;
  info_.force_bos = ids.force_bos.value_or(false);
}

StateLayout DeltaNet::state_layout() const {
  StateLayout layout;
  for (int b = 0; b < static_cast<int>(c_.blocks); ++b) {
    layout.arrays.push_back(
        {.name = "S", .layer = b, .dtype = c_.state, .shape = {c_.H, c_.DK, c_.DV}});
    if (c_.width > 0) {
      layout.arrays.push_back({.name = "conv", .layer = b, .shape = {c_.mixed(), c_.width - 1}});
    }
  }
  return layout;
}

// The widths of the rows of Scratch, but for x and `picked`, in its order.
std::vector<int64_t> DeltaNet::widths() const {
  return {
      c_.projected(), c_.width > 0 ? c_.mixed() : 0, c_.H, c_.gated() ? c_.H : 0, c_.out(), c_.F};
}

size_t DeltaNet::arena_bytes(const StepLimits& limits) const {
  const auto bytes_for = [](int count, int64_t width) {
    return Arena::bytes_for(static_cast<size_t>(count) * static_cast<size_t>(width));
  };
  size_t bytes = Residual::bytes_for(kernels_, limits.rows, c_.D) + bytes_for(limits.logits, c_.D);
  for (const int64_t width : widths()) bytes += bytes_for(limits.rows, width);
  return bytes;
}

DeltaNet::Scratch DeltaNet::take_scratch(Arena& arena, int rows, int logits, Residual& x) const {
  std::vector<float*> a;
  for (const int64_t width : widths()) {
    a.push_back(arena.floats(static_cast<size_t>(rows) * static_cast<size_t>(width)));
  }
  float* picked = arena.floats(static_cast<size_t>(logits) * static_cast<size_t>(c_.D));
  return {x, a[0], a[1], a[2], a[3], a[4], a[5], picked};
}

void DeltaNet::forward(const StepBatch& batch, const StatePool& states, Arena& arena,
                       Stream& stream, float* logits) const {
  const int rows = batch.seqs.rows;
  arena.reset();
  Residual x(kernels_, arena, rows, c_.D);
  const Scratch s = take_scratch(arena, rows, batch.num_logits, x);
  const Head last{.norm = &tokens_.norm, .W = tokens_.head_matrix(), .eps = c_.eps, .soft_cap = 0};
  kernels_.embed({.rows = rows, .E = tokens_.embedding.matrix(), .token = batch.tokens, .x = x.x()},
                 stream);
  for (size_t b = 0; b < blocks_.size(); ++b) {
    mixer(blocks_[b], b, batch.seqs, states, s, stream);
    gated_ffn(blocks_[b].ffn, c_.eps, x, reader_after(blocks_, b, last), s.hidden, kernels_,
              stream);
  }
  head(last, batch, x, s.picked, logits, kernels_, stream);
}

void DeltaNet::mixer(const Block& block, size_t index, const Ragged& seqs, const StatePool& states,
                     const Scratch& s, Stream& stream) const {
  float* q = mix(block, index, seqs, states, s, stream);
  gates(block, seqs.rows, s, q, stream);
  recur(index, seqs, states, s, q, stream);
  // The feed-forward part does not use its memory yet.
  const Activations o = rows_for(kernels_, block.out.matrix(), s.o, s.hidden, c_.F);
  kernels_.head_rms_norm({.rows = seqs.rows,
                          .H = static_cast<int>(c_.H),
                          .DV = static_cast<int>(c_.DV),
                          .eps = c_.eps,
                          .gate_stride = static_cast<int>(c_.projected()),
                          .x = s.o,
                          .w = block.out_norm.data(),
                          .gate = c_.output_gate ? s.projected + c_.mixed() : nullptr,
                          .y = o.f32,
                          .y_bf16 = o.bf16,
                          .f = c_.gate},
                         stream);
  kernels_.linear(
      s.x.add({.W = block.out.matrix(), .x = o.f32, .x_bf16 = o.bf16}, block.ffn.reader()), stream);
}

void DeltaNet::activate(Activation f, int rows, int64_t width, float* x, Stream& stream) const {
  if (f == Activation::kIdentity) return;
  kernels_.activation({.rows = rows,
                       .width = static_cast<int>(width),
                       .f = f,
                       .scale = 1,
                       .floor = -std::numeric_limits<float>::infinity(),
                       .x_stride = stride(),
                       .y_stride = stride(),
                       .x = x,
                       .y = x},
                      stream);
}

// Queries, keys and values side by side: projected, convolved and through their functions.
float* DeltaNet::mix(const Block& block, size_t index, const Ragged& seqs, const StatePool& states,
                     const Scratch& s, Stream& stream) const {
  const bool together = c_.width > 0 && c_.activation == Activation::kSilu;
  kernels_.linear(s.x.read(block.reader(), c_.eps, {.y = s.projected}), stream);
  if (c_.width > 0) {
    kernels_.causal_conv1d({.seqs = seqs,
                            .D = static_cast<int>(c_.mixed()),
                            .width = static_cast<int>(c_.width),
                            .silu = together,
                            .x_stride = static_cast<int>(c_.projected()),
                            .x = s.projected,
                            .w = block.conv.data(),
                            .bias = nullptr,
                            .state = states.array(states_a_block() * index + 1),
                            .y = s.mixed},
                           stream);
  }
  float* q = c_.width > 0 ? s.mixed : s.projected;
  if (!together) {
    activate(c_.activation, seqs.rows, 2 * c_.qk(), q, stream);
    activate(Activation::kSilu, seqs.rows, c_.out(), q + 2 * c_.qk(), stream);
  }
  return q;
}

void DeltaNet::gates(const Block& block, int rows, const Scratch& s, float* q,
                     Stream& stream) const {
  const int projected = static_cast<int>(c_.projected());
  const float* b = s.projected + c_.mixed() + (c_.output_gate ? c_.out() : 0);
  kernels_.delta_gate({.rows = rows,
                       .H = static_cast<int>(c_.H),
                       .HK = static_cast<int>(c_.HK),
                       .DK = static_cast<int>(c_.DK),
                       .decays = c_.gated() ? 1 : 0,
                       .norm = c_.norm,
                       .eps = kLengthEps,
                       .beta_scale = c_.beta_scale,
                       .qk_stride = stride(),
                       .b_stride = projected,
                       .a_stride = projected,
                       .b = c_.has_beta ? b : nullptr,
                       .a = c_.gated() ? b + c_.H : nullptr,
                       .A = block.A.data(),
                       .dt_bias = block.dt_bias.data(),
                       .q = q,
                       .k = q + c_.qk(),
                       .beta = s.beta,
                       .g = c_.gated() ? s.g : nullptr},
                      stream);
}

void DeltaNet::recur(size_t index, const Ragged& seqs, const StatePool& states, const Scratch& s,
                     const float* q, Stream& stream) const {
  const int H = static_cast<int>(c_.H);
  kernels_.delta_rule({.seqs = seqs,
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
                       .g_stride = c_.gated() ? H : 0,
                       .beta_stride = H,
                       .q = q,
                       .k = q + c_.qk(),
                       .v = q + 2 * c_.qk(),
                       .g = c_.gated() ? s.g : nullptr,
                       .beta = s.beta,
                       .S = states.data(states_a_block() * index),
                       .o = s.o,
                       .bounded_beta = c_.bounded_beta()},
                      stream);
}

}  // namespace
}  // namespace delta_net

std::unique_ptr<const Model> load_delta_net(Checkpoint& checkpoint, Backend& backend,
                                            const LoadOptions& options,
                                            const Checkpoint::Progress& progress) {
  return std::make_unique<delta_net::DeltaNet>(checkpoint, backend, options, progress);
}

}  // namespace recurve
