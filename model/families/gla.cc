// The families of flash-linear-attention whose state is a matrix that fades and gains an outer
// product: GLA, simple GLA, RetNet, linear attention and HGRN2. One block for all: a mixer of
// queries, keys and values, and a gated feed-forward layer. They differ in where the decay comes
// from (kernels/ops/gla.h), in what is done to queries and keys, and in the norm of the output.
// Source: fla layers/{gla,simple_gla,multiscale_retention,linear_attn,hgrn2}.py, modules/mlp.py.
#include <fmt/format.h>

#include <cmath>

#include "kernels/fusion.h"
#include "model/families/gla_block.h"
#include "model/families/gla_features.h"
#include "model/layers/head.h"
#include "model/layers/required_ops.h"
#include "model/load_model.h"
#include "model/special_ids.h"

namespace recurve {
namespace gla_family {
namespace {

// What fla's hgrn2.py norms the output with: it does not pass the layer's own eps on.
constexpr float kHgrn2NormEps = 1e-5f;
// fla ops/linear_attn/utils.py, normalize_output.
constexpr float kNormaliserEps = 1e-10f;

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
    Residual& x;
    float* projected;  // (rows, projected)
    float* mixed;      // (rows, mixed) after the convolution, if there is one
    FeatureScratch features;
    float* g_shared;    // (rows, KV DK) where KV < H
    float* g;           // (rows, H DK) log decays of channels
    float* k;           // (rows, H DK) kHgrn2
    int32_t* position;  // (rows) kRetnet
    float* o;           // (rows, H DV)
    float* hidden;      // (rows, F)
    float* picked;      // (logits, D)
  };
  std::vector<int64_t> widths() const;
  Scratch take_scratch(Arena& arena, int rows, int logits, Residual& x) const;
  size_t states_a_block() const { return 1 + (c_.width > 0 ? 1 : 0) + (c_.normaliser ? 1 : 0); }

  void fill_info(const Checkpoint& checkpoint);

  void mixer(const Block& block, size_t index, const Ragged& seqs, const StatePool& states,
             const Scratch& scratch, Stream& stream) const;
  Mixed mix(const Block& block, size_t index, const Ragged& seqs, const StatePool& states,
            const Scratch& scratch, Stream& stream) const;
  void gates(const Block& block, int rows, const Scratch& scratch, Mixed& in, Stream& stream) const;
  void recur(size_t index, const Ragged& seqs, const StatePool& states, const Scratch& scratch,
             const Mixed& in, Stream& stream) const;

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

Gla::Gla(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
         const Checkpoint::Progress& progress)
    : c_(read_config(checkpoint)), kernels_(backend.kernels()) {
  require_ops(backend, c_.type, {"embed", "gather_rows", "linear", "gla"});
  if (c_.width > 0) require_ops(backend, c_.type, {"causal_conv1d"});
  if (c_.kind == Kind::kRetnet) require_ops(backend, c_.type, {"positions", "rotary"});
  if (c_.kind == Kind::kHgrn2) {
    require_ops(backend, c_.type, {"hgrn_gate", "rms_norm"});
  } else if (c_.head_norm) {
    require_ops(backend, c_.type, {"head_rms_norm"});
  }
  if (c_.kind == Kind::kGla) require_ops(backend, c_.type, {"gla_gate"});
  const bool maps = c_.kind != Kind::kRetnet && c_.kind != Kind::kGla;
  if (maps || c_.KV < c_.H || c_.activation != Activation::kIdentity) {
    require_ops(backend, c_.type, {"activation"});
  }
  if (c_.maps_heads()) require_ops(backend, c_.type, {"feature_map"});
  if (c_.map_weights) require_ops(backend, c_.type, {"headwise_linear"});
  c_.state = require_state(backend, c_.type, "gla", options.state);
  if (options.chunk > 0) c_.chunk = options.chunk;
  require_sizes(backend, c_.type,
                GlaArgs{.H = static_cast<int>(c_.H),
                        .DK = static_cast<int>(c_.DM()),
                        .DV = static_cast<int>(c_.DV),
                        .chunk = c_.chunk,
                        .decay = c_.decay(),
                        .S = {nullptr, c_.state}});
  const std::string prefix = checkpoint.detect_prefix({"model.", ""}, "norm.weight");
  tokens_ = load_token_weights(backend, checkpoint, prefix, "norm.weight", c_.vocab, c_.D, c_.tied,
                               options.weights);
  for (int64_t b = 0; b < c_.blocks; ++b) {
    blocks_.push_back(load_block(c_, checkpoint, backend, fmt::format("{}layers.{}.", prefix, b),
                                 options.weights));
  }
  if (c_.lower_bound) load_bounds(c_, checkpoint, backend, prefix + "lower_bounds", blocks_);
  if (c_.kind == Kind::kRetnet) {
    head_decay_ = VectorWeights::from(backend, retnet_decays(c_.H));
    frequency_ = VectorWeights::from(backend, rotary_frequencies(c_.DK));
    checkpoint.allow_extra({prefix + "rotary.inv_freq"});
  }
  checkpoint.finish(progress);
  fill_info(checkpoint);
}

void Gla::fill_info(const Checkpoint& checkpoint) {
  WeightTally tally;
  tally.add(tokens_);
  for (const Block& block : blocks_) add_to(tally, block);
  info_.parameters = tally.parameters + (c_.lower_bound ? c_.blocks * c_.D : 0);
  info_.weight_bytes = tally.bytes;
  info_.family = c_.type;
  info_.prefers_int8 = c_.kind == Kind::kGla;
  info_.description = fmt::format("{} blocks, width {}, {} heads of {} x {}, feed-forward {}",
                                  c_.blocks, c_.D, c_.H, c_.DK, c_.DV, c_.F);
  info_.head = tokens_.head_source;
  info_.vocab = c_.vocab;
  info_.width = c_.D;
  info_.chunk = c_.chunk;
  set_special_ids(read_special_ids(checkpoint), &info_);
}

StateLayout Gla::state_layout() const {
  StateLayout layout;
  for (int b = 0; b < static_cast<int>(c_.blocks); ++b) {
    layout.arrays.push_back(
        {.name = "S", .layer = b, .dtype = c_.state, .shape = {c_.H, c_.DM(), c_.DV}});
    if (c_.normaliser) layout.arrays.push_back({.name = "z", .layer = b, .shape = {c_.H, c_.DM()}});
    if (c_.width > 0) {
      layout.arrays.push_back({.name = "conv", .layer = b, .shape = {c_.mixed(), c_.width - 1}});
    }
  }
  if (c_.kind == Kind::kRetnet) {  // how far the session has come, for all blocks
    layout.arrays.push_back(
        {.name = "position", .dtype = DType::kI32, .shape = {1}, .values = StateValues::kPosition});
  }
  return layout;
}

// The widths of the rows of Scratch, but for x and `picked`, in its order.
std::vector<int64_t> Gla::widths() const {
  return {c_.projected(),
          c_.width > 0 ? c_.mixed() : 0,
          c_.KV < c_.H ? 2 * c_.q() + c_.out() : 0,
          c_.map_weights ? c_.H * c_.map_rows() : 0,
          c_.maps_heads() ? c_.H * c_.DM() : 0,
          c_.maps_heads() ? c_.H * c_.DM() : 0,
          c_.kind == Kind::kGla && c_.KV < c_.H ? c_.k() : 0,
          c_.decay() == GlaDecay::kChannel ? c_.q() : 0,
          c_.kind == Kind::kHgrn2 ? c_.q() : 0,
          c_.kind == Kind::kRetnet ? 1 : 0,
          c_.out(),
          c_.F};
}

size_t Gla::arena_bytes(const StepLimits& limits) const {
  const auto bytes_for = [](int count, int64_t width) {
    return Arena::bytes_for(static_cast<size_t>(count) * static_cast<size_t>(width));
  };
  size_t bytes = Residual::bytes_for(kernels_, limits.rows, c_.D) + bytes_for(limits.logits, c_.D);
  for (const int64_t width : widths()) bytes += bytes_for(limits.rows, width);
  return bytes;
}

Gla::Scratch Gla::take_scratch(Arena& arena, int rows, int logits, Residual& x) const {
  std::vector<float*> arrays;
  for (const int64_t width : widths()) {
    arrays.push_back(arena.floats(static_cast<size_t>(rows) * static_cast<size_t>(width)));
  }
  static_assert(sizeof(float) == sizeof(int32_t));
  return {.x = x,
          .projected = arrays[0],
          .mixed = arrays[1],
          .features = {arrays[2], arrays[3], arrays[4], arrays[5]},
          .g_shared = arrays[6],
          .g = arrays[7],
          .k = arrays[8],
          .position = reinterpret_cast<int32_t*>(arrays[9]),
          .o = arrays[10],
          .hidden = arrays[11],
          .picked = arena.floats(static_cast<size_t>(logits) * static_cast<size_t>(c_.D))};
}

void Gla::forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
                  float* logits) const {
  const int rows = batch.seqs.rows;
  arena.reset();
  Residual x(kernels_, arena, rows, c_.D);
  const Scratch s = take_scratch(arena, rows, batch.num_logits, x);
  const Head last{.norm = &tokens_.norm, .W = tokens_.head_matrix(), .eps = c_.eps, .soft_cap = 0};
  kernels_.embed({.rows = rows, .E = tokens_.embedding.matrix(), .token = batch.tokens, .x = x.x()},
                 stream);
  if (c_.kind == Kind::kRetnet) {
    kernels_.positions({.seqs = batch.seqs,
                        .count = states.array<int32_t>(states_a_block() * blocks_.size()),
                        .position = s.position},
                       stream);
  }
  for (size_t b = 0; b < blocks_.size(); ++b) {
    mixer(blocks_[b], b, batch.seqs, states, s, stream);
    feed_forward(blocks_[b].ffn, c_.eps, x, reader_after(blocks_, b, last), s.hidden, kernels_,
                 stream);
  }
  head(last, batch, x, s.picked, logits, kernels_, stream);
}

void Gla::mixer(const Block& block, size_t index, const Ragged& seqs, const StatePool& states,
                const Scratch& s, Stream& stream) const {
  const int rows = seqs.rows;
  Mixed in = mix(block, index, seqs, states, s, stream);
  gates(block, rows, s, in, stream);
  recur(index, seqs, states, s, in, stream);
  Activations o{.f32 = s.o};
  if (c_.kind == Kind::kHgrn2) {  // over all heads together
    kernels_.rms_norm({.rows = rows,
                       .D = static_cast<int>(c_.out()),
                       .eps = kHgrn2NormEps,
                       .x = s.o,
                       .w = block.out_norm.data(),
                       .y = s.o},
                      stream);
  } else if (c_.head_norm) {
    // The feed-forward part does not use its memory yet.
    o = rows_for(kernels_, block.out.matrix(), s.o, s.hidden, c_.F);
    kernels_.head_rms_norm({.rows = rows,
                            .H = static_cast<int>(c_.H),
                            .DV = static_cast<int>(c_.DV),
                            .eps = c_.eps,
                            .gate_stride = static_cast<int>(c_.projected()),
                            .x = s.o,
                            .w = block.out_norm.data(),
                            .gate = c_.output_gate ? s.projected + c_.mixed() : nullptr,
                            .y = o.f32,
                            .y_bf16 = o.bf16},
                           stream);
  }
  kernels_.linear(
      s.x.add({.W = block.out.matrix(), .x = o.f32, .x_bf16 = o.bf16}, block.ffn.reader()), stream);
}

// Queries, keys and values: projected, convolved, mapped and turned.
Mixed Gla::mix(const Block& block, size_t index, const Ragged& seqs, const StatePool& states,
               const Scratch& s, Stream& stream) const {
  const int rows = seqs.rows, projected = static_cast<int>(c_.projected());
  kernels_.linear(
      s.x.read(block.reader(), c_.eps, {.bias = block.projection.bias(), .y = s.projected}),
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
  Mixed in = {.q = q,
              .k = q + c_.q(),
              .v = q + c_.q() + c_.k(),
              .q_stride = stride,
              .k_stride = stride,
              .v_stride = stride};
  if (c_.KV < c_.H) in = share_heads(c_, kernels_, rows, s.features, in, stream);
  map_features(c_, kernels_, block, rows, s.features, in, stream);
  if (c_.kind == Kind::kRetnet) {  // queries and keys: 2 H heads
    kernels_.rotary({.rows = rows,
                     .H = static_cast<int>(2 * c_.H),
                     .D = static_cast<int>(c_.DK),
                     .stride = in.q_stride,
                     .position = s.position,
                     .frequency = frequency_.data(),
                     .x = in.q},
                    stream);
  }
  return in;
}

// The logs of the decays, into s.g or in place; HGRN2's keys come with them.
void Gla::gates(const Block& block, int rows, const Scratch& s, Mixed& in, Stream& stream) const {
  const int qk = static_cast<int>(c_.q()), projected = static_cast<int>(c_.projected());
  if (c_.kind == Kind::kHgrn2) {
    kernels_.hgrn_gate({.rows = rows,
                        .D = qk,
                        .f_stride = in.k_stride,
                        .f = in.k,
                        .bound = block.bound.data(),
                        .g = s.g,
                        .k = s.k},
                       stream);
    in.k = s.k;
    in.k_stride = qk;
  } else if (c_.kind == Kind::kGla) {
    const bool shared = c_.KV < c_.H;
    kernels_.gla_gate({.rows = rows,
                       .W = block.gate_up.matrix(),
                       .bias = block.gate_up.bias(),
                       .scale = 1 / c_.gate_divisor,
                       .floor = c_.gate_floor,
                       .low_stride = projected,
                       .low = s.projected + projected - c_.gate_rank,
                       .g = shared ? s.g_shared : s.g},
                      stream);
    if (shared) {
      spread(c_, kernels_, rows, c_.DK, s.g_shared, static_cast<int>(c_.k()), s.g, c_.q(), stream);
    }
  } else if (c_.kind == Kind::kSimpleGla) {
    apply(kernels_, Activation::kLogSigmoid, 1 / c_.gate_divisor, c_.gate_floor, rows, c_.H,
          projected, s.projected + projected - c_.H, stream);
  }
}

void Gla::recur(size_t index, const Ragged& seqs, const StatePool& states, const Scratch& s,
                const Mixed& in, Stream& stream) const {
  const int projected = static_cast<int>(c_.projected());
  const GlaDecay decay = c_.decay();
  const float* g = nullptr;
  int g_stride = 0;
  if (decay == GlaDecay::kChannel) {
    g = s.g;
    g_stride = static_cast<int>(c_.q());
  } else if (decay == GlaDecay::kToken) {
    g = s.projected + projected - c_.H;
    g_stride = projected;
  } else if (decay == GlaDecay::kHead) {
    g = head_decay_.data();
  }
  const size_t first = states_a_block() * index;
  kernels_.gla({.seqs = seqs,
                .H = static_cast<int>(c_.H),
                .DK = static_cast<int>(c_.DM()),
                .DV = static_cast<int>(c_.DV),
                .chunk = c_.chunk,
                .decay = decay,
                .scale = 1.0f / std::sqrt(static_cast<float>(c_.DM())),
                .eps = kNormaliserEps,
                .q_stride = in.q_stride,
                .k_stride = in.k_stride,
                .v_stride = in.v_stride,
                .g_stride = g_stride,
                .q = in.q,
                .k = in.k,
                .v = in.v,
                .g = g,
                .i = nullptr,
                .S = states.data(first),
                .z = c_.normaliser ? states.array(first + 1) : nullptr,
                .o = s.o},
               stream);
}

}  // namespace
}  // namespace gla_family

std::unique_ptr<const Model> load_gla(Checkpoint& checkpoint, Backend& backend,
                                      const LoadOptions& options,
                                      const Checkpoint::Progress& progress) {
  return std::make_unique<gla_family::Gla>(checkpoint, backend, options, progress);
}

}  // namespace recurve
