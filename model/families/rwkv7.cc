// RWKV-7 "Goose": a time mix around a state matrix a head, of which each token takes a part along
// one key out before it puts its own in (kernels/ops/rwkv7.h), and a feed-forward layer of squared
// ReLUs; both see the row before their own through a token shift. The first layer's values go into
// those of every later one. Source: BlinkDL's RWKV-LM, rwkv_v7_numpy.py, whose
// normalisation of keys is followed where flash-linear-attention's layers/rwkv7.py differs; names
// of tensors, config and the eps of norms are the latter's, which are BlinkDL's where norm_eps is
// 1e-5.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/fusion.h"
#include "model/families/rwkv7_block.h"
#include "model/layers/head.h"
#include "model/layers/required_ops.h"
#include "model/load_model.h"
#include "model/special_ids.h"

namespace recurve {
namespace rwkv7 {
namespace {

class Rwkv7 final : public Model {
 public:
  Rwkv7(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
        const Checkpoint::Progress& progress);

  const ModelInfo& info() const override { return info_; }
  StateLayout state_layout() const override;
  size_t arena_bytes(const StepLimits& limits) const override;
  void forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
               float* logits) const override;

 private:
  // Arrays of a layer's state, in their order.
  enum { kMatrix, kShift, kFfnShift, kArrays };

  // Activations of one step.
  struct Scratch {
    float* x;        // (rows, D) the residual stream
    float* y;        // (rows, D) normed
    float* mixed;    // (6, rows, D) by Reader, or in bf16 in the same places
    float* r;        // (rows, D)
    float* k;        // (rows, D)
    float* v;        // (rows, D)
    float* v_first;  // (rows, D) the first layer's values
    float* w;        // (rows, D) log decays
    float* alpha;    // (rows, D)
    float* mix;      // (rows, D) of the values, before its sigmoid
    float* g;        // (rows, D)
    float* kk;       // (rows, D)
    float* o;        // (rows, D)
    float* low;      // (8, rows, rank) between the low-rank pairs: each in fp32 and in bf16
    float* hidden;   // (rows, F)
    float* picked;   // (logits, D)
  };
  std::vector<int64_t> widths() const;
  Scratch take_scratch(Arena& arena, int rows, int logits) const;
  void fill_info(const Checkpoint& checkpoint);

  LayerNormArgs norm(const VectorWeights& w, const VectorWeights& b, int rows, const float* x,
                     float* y) const;
  LinearArgs linear(const LinearWeights& weights, int rows, const Activations& x, float* y) const;
  void add_linear(const LinearWeights& weights, int rows, const Activations& x, const Scratch& s,
                  Stream& stream) const;
  using Mixes = std::array<Activations, TokenShiftArgs::kMost>;
  Mixes mixes(size_t index, int rows, const Scratch& s) const;
  void shift(const LayerNorm& before, std::span<const float* const> mu, const Mixes& mixes,
             const Ragged& seqs, float* state, const Scratch& s, Stream& stream) const;
  void time_mix(size_t index, const Ragged& seqs, const StatePool& states, const Scratch& s,
                Stream& stream) const;
  void project(size_t index, int rows, const Mixes& mixes, const Scratch& s, float* v,
               Stream& stream) const;
  void recur(size_t index, const Ragged& seqs, const StatePool& states, const Scratch& s, float* v,
             const Activations& out, Stream& stream) const;
  void feed_forward(size_t index, const Ragged& seqs, const StatePool& states, const Scratch& s,
                    Stream& stream) const;
  void head(const StepBatch& batch, const Scratch& s, float* logits, Stream& stream) const;

  Config c_;
  const Kernels& kernels_;
  TokenWeights tokens_;
  VectorWeights out_bias_;  // (D) of the last norm
  LayerNorm embed_norm_;    // behind the embedding
  std::vector<Block> blocks_;
  int64_t most_rank_ = 0;  // of low-rank pairs, rounded up
  ModelInfo info_;
};

Rwkv7::Rwkv7(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
             const Checkpoint::Progress& progress)
    : c_(read_config(checkpoint)), kernels_(backend.kernels()) {
  require_ops(backend, "rwkv7",
              {"embed", "gather_rows", "linear", "layer_norm", "activation", "token_shift",
               "rwkv7_gate", "rwkv7", "head_norm_bonus"});
  c_.state = require_state(backend, "rwkv7", "rwkv7", options.state);
  if (options.chunk > 0) c_.chunk = options.chunk;
  require_sizes(backend, "rwkv7",
                Rwkv7Args{.H = static_cast<int>(c_.H),
                          .N = static_cast<int>(c_.N),
                          .chunk = c_.chunk,
                          .S = {nullptr, c_.state}});
  const std::string prefix = checkpoint.detect_prefix({"model.", ""}, "norm.weight");
  tokens_ = load_token_weights(backend, checkpoint, prefix, "norm.weight", c_.vocab, c_.D, c_.tied,
                               options.weights);
  out_bias_ = VectorWeights::load(backend, checkpoint, prefix + "norm.bias", {{c_.D}});
  for (int64_t b = 0; b < c_.blocks; ++b) {
    const std::string layer = fmt::format("{}layers.{}.", prefix, b);
    if (b == 0) embed_norm_ = load_norm(checkpoint, backend, layer + "pre_norm", c_.D);
    blocks_.push_back(load_block(c_, checkpoint, backend, layer, b == 0, options.weights));
    const Ranks ranks = ranks_of(c_, checkpoint, layer + "attn.");
    most_rank_ = std::max({most_rank_, ranks.w, ranks.a, ranks.v, ranks.g});
    most_rank_ = (most_rank_ + 7) / 8 * 8;  // each begins at a multiple of 16 bytes
  }
  checkpoint.finish(progress);
  fill_info(checkpoint);
}

void Rwkv7::fill_info(const Checkpoint& checkpoint) {
  WeightTally tally;
  tally.add(tokens_);
  tally.add(out_bias_);
  add_to(tally, embed_norm_);
  for (const Block& block : blocks_) add_to(tally, block);
  info_.parameters = tally.parameters;
  info_.weight_bytes = tally.bytes;
  info_.family = "rwkv7";
  info_.description = fmt::format("{} blocks, width {}, {} heads of {} x {}, feed-forward {}",
                                  c_.blocks, c_.D, c_.H, c_.N, c_.N, c_.F);
  info_.head = tokens_.head_source;
  info_.vocab = c_.vocab;
  info_.width = c_.D;
  info_.chunk = c_.chunk;
  set_special_ids(read_special_ids(checkpoint), &info_);
}

StateLayout Rwkv7::state_layout() const {
  StateLayout layout;
  for (int b = 0; b < static_cast<int>(c_.blocks); ++b) {
    layout.arrays.push_back(
        {.name = "S", .layer = b, .dtype = c_.state, .shape = {c_.H, c_.N, c_.N}});
    layout.arrays.push_back({.name = "shift", .layer = b, .shape = {c_.D}});
    layout.arrays.push_back({.name = "ffn_shift", .layer = b, .shape = {c_.D}});
  }
  return layout;
}

// Of the rows of Scratch, but for `picked`, in its order.
std::vector<int64_t> Rwkv7::widths() const {
  const int64_t D = c_.D;
  return {D, D, 6 * D, D, D, D, D, D, D, D, D, D, D, 8 * most_rank_, c_.F};
}

size_t Rwkv7::arena_bytes(const StepLimits& limits) const {
  const auto bytes_for = [](int count, int64_t width) {
    return Arena::bytes_for(static_cast<size_t>(count) * static_cast<size_t>(width));
  };
  size_t bytes = bytes_for(limits.logits, c_.D);
  for (const int64_t width : widths()) bytes += bytes_for(limits.rows, width);
  return bytes;
}

Rwkv7::Scratch Rwkv7::take_scratch(Arena& arena, int rows, int logits) const {
  std::vector<float*> a;
  for (const int64_t width : widths()) {
    a.push_back(arena.floats(static_cast<size_t>(rows) * static_cast<size_t>(width)));
  }
  return {
      a[0],  a[1],  a[2],  a[3],
      a[4],  a[5],  a[6],  a[7],
      a[8],  a[9],  a[10], a[11],
      a[12], a[13], a[14], arena.floats(static_cast<size_t>(logits) * static_cast<size_t>(c_.D))};
}

void Rwkv7::forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
                    float* logits) const {
  const int rows = batch.seqs.rows;
  arena.reset();
  const Scratch s = take_scratch(arena, rows, batch.num_logits);
  kernels_.embed({.rows = rows, .E = tokens_.embedding.matrix(), .token = batch.tokens, .x = s.x},
                 stream);
  kernels_.layer_norm(norm(embed_norm_.w, embed_norm_.b, rows, s.x, s.x), stream);
  for (size_t b = 0; b < blocks_.size(); ++b) {
    time_mix(b, batch.seqs, states, s, stream);
    feed_forward(b, batch.seqs, states, s, stream);
  }
  head(batch, s, logits, stream);
}

LayerNormArgs Rwkv7::norm(const VectorWeights& w, const VectorWeights& b, int rows, const float* x,
                          float* y) const {
  return {.rows = rows,
          .D = static_cast<int>(c_.D),
          .G = 1,
          .eps = c_.eps,
          .x = x,
          .w = w.data(),
          .b = b.data(),
          .residual = nullptr,
          .y = y};
}

LinearArgs Rwkv7::linear(const LinearWeights& weights, int rows, const Activations& x,
                         float* y) const {
  LinearArgs args{.rows = rows, .W = weights.matrix(), .bias = weights.bias(), .y = y};
  read_rows(kernels_, x, args);
  return args;
}

// Adds the layer's outputs to the residual stream.
void Rwkv7::add_linear(const LinearWeights& weights, int rows, const Activations& x,
                       const Scratch& s, Stream& stream) const {
  LinearArgs args = linear(weights, rows, x, s.x);
  args.residual = s.x;
  kernels_.linear(args, stream);
}

// Where the mixes of a layer's token shift go, by Reader.
Rwkv7::Mixes Rwkv7::mixes(size_t index, int rows, const Scratch& s) const {
  const Block& block = blocks_[index];
  Mixes mixes;
  const auto put = [&](Reader reader, std::span<const Matrix> readers) {
    mixes[reader] = rows_for(kernels_, readers, s.mixed + int64_t{reader} * rows * c_.D, s.o);
  };
  put(kR, {{block.r.matrix()}});
  put(kW, {{block.decay.down.matrix()}});
  put(kK, {{block.k.matrix()}});
  put(kA, {{block.rate.down.matrix()}});
  put(kG, {{block.gate.down.matrix()}});
  const Matrix of_v[] = {block.v.matrix(), block.value_mix.down.matrix()};
  put(kV, std::span(of_v).first(index == 0 ? 1 : 2));
  return mixes;
}

// s.x, normed and mixed for as many readers as there are mu.
void Rwkv7::shift(const LayerNorm& before, std::span<const float* const> mu, const Mixes& mixes,
                  const Ragged& seqs, float* state, const Scratch& s, Stream& stream) const {
  TokenShiftArgs args{.seqs = seqs,
                      .D = static_cast<int>(c_.D),
                      .n = static_cast<int>(mu.size()),
                      .x_stride = static_cast<int>(c_.D),
                      .x = s.y,
                      .mu = {},
                      .state = state,
                      .y = {}};
  for (size_t i = 0; i < mu.size(); ++i) {
    args.mu[i] = mu[i];
    args.y[i] = mixes[i].f32;
    args.y_bf16[i] = mixes[i].bf16;
  }
  norm_shift(kernels_, norm(before.w, before.b, seqs.rows, s.x, s.y), args, stream);
}

void Rwkv7::time_mix(size_t index, const Ragged& seqs, const StatePool& states, const Scratch& s,
                     Stream& stream) const {
  const Block& block = blocks_[index];
  const int rows = seqs.rows;
  float* v = index == 0 ? s.v_first : s.v;
  const Mixes mixed = mixes(index, rows, s);
  shift(block.norm, block.mu, mixed, seqs, states.array(kArrays * index + kShift), s, stream);
  project(index, rows, mixed, s, v, stream);
  const Activations out = rows_for(kernels_, block.out.matrix(), s.o, s.kk, c_.D);
  recur(index, seqs, states, s, v, out, stream);
  add_linear(block.out, rows, out, s, stream);
}

// All that the recurrence takes but for the values of the first layer's, which stay as they are.
void Rwkv7::project(size_t index, int rows, const Mixes& mixes, const Scratch& s, float* v,
                    Stream& stream) const {
  const Block& block = blocks_[index];
  std::vector<LinearArgs> first = {linear(block.r, rows, mixes[kR], s.r),
                                   linear(block.k, rows, mixes[kK], s.k),
                                   linear(block.v, rows, mixes[kV], v)};
  std::vector<LinearArgs> second;
  const int64_t step = rows * most_rank_;
  int64_t at = 0;  // in s.low
  const auto low_rank = [&](const LowRank& m, Reader reader, Activation f, float* y) {
    const Activations low =
        rows_between(kernels_, m.down.matrix(), m.up.matrix(), s.low + at, s.low + at + step);
    at += 2 * step;
    first.push_back(linear(m.down, rows, mixes[reader], low.f32));
    first.back().y_bf16 = low.bf16;
    first.back().activation = f;
    second.push_back(linear(m.up, rows, low, y));
  };
  low_rank(block.decay, kW, Activation::kTanh, s.w);
  low_rank(block.rate, kA, Activation::kIdentity, s.alpha);
  low_rank(block.gate, kG, Activation::kSigmoid, s.g);
  if (index > 0) low_rank(block.value_mix, kV, Activation::kIdentity, s.mix);
  linear_group(kernels_, first, stream);
  linear_group(kernels_, second, stream);
}

// From what project() leaves to the rows of the last layer before the residual stream.
void Rwkv7::recur(size_t index, const Ragged& seqs, const StatePool& states, const Scratch& s,
                  float* v, const Activations& out, Stream& stream) const {
  const Block& block = blocks_[index];
  const int rows = seqs.rows, H = static_cast<int>(c_.H), N = static_cast<int>(c_.N);
  const Rwkv7GateArgs gate{.rows = rows,
                           .H = H,
                           .N = N,
                           .k_k = block.k_k.data(),
                           .k_a = block.k_a.data(),
                           .v_first = s.v_first,
                           .m = index == 0 ? nullptr : s.mix,
                           .w = s.w,
                           .a = s.alpha,
                           .k = s.k,
                           .v = v,
                           .kk = s.kk};
  const Rwkv7Args recurrence{.seqs = seqs,
                             .H = H,
                             .N = N,
                             .chunk = c_.chunk,
                             .stride = static_cast<int>(c_.D),
                             .r = s.r,
                             .lw = s.w,
                             .k = s.k,
                             .v = v,
                             .kk = s.kk,
                             .alpha = s.alpha,
                             .S = states.data(kArrays * index + kMatrix),
                             .o = s.o};
  const HeadNormBonusArgs bonus{.rows = rows,
                                .H = H,
                                .N = N,
                                .eps = c_.head_eps(),
                                .o = s.o,
                                .r = s.r,
                                .k = s.k,
                                .v = v,
                                .g = s.g,
                                .r_k = block.r_k.data(),
                                .w = block.head_norm.w.data(),
                                .b = block.head_norm.b.data(),
                                .y = out.f32,
                                .y_bf16 = out.bf16};
  rwkv7_cell(kernels_, gate, recurrence, bonus, stream);
}

void Rwkv7::feed_forward(size_t index, const Ragged& seqs, const StatePool& states,
                         const Scratch& s, Stream& stream) const {
  const Block& block = blocks_[index];
  const int rows = seqs.rows;
  const float* mu[] = {block.ffn_mu.data()};
  constexpr int kSpare = TokenShiftArgs::kMost - 1;  // mixes that this layer does not have
  const Activations mixed = rows_for(kernels_, {{block.ffn_key.matrix()}}, s.mixed, nullptr);
  const Activations hidden =
      rows_for(kernels_, block.ffn_value.matrix(), s.hidden, s.mixed + rows * c_.D, kSpare * c_.D);
  shift(block.ffn_norm, mu, {mixed}, seqs, states.array(kArrays * index + kFfnShift), s, stream);
  LinearArgs key = linear(block.ffn_key, rows, mixed, s.hidden);
  key.y_bf16 = hidden.bf16;
  key.activation = Activation::kSquaredRelu;
  linear_group(kernels_, {{key}}, stream);
  add_linear(block.ffn_value, rows, hidden, s, stream);
}

void Rwkv7::head(const StepBatch& batch, const Scratch& s, float* logits, Stream& stream) const {
  if (batch.num_hidden > 0) {
    copy_hidden(batch, c_.D, s.x, kernels_, stream);
    kernels_.layer_norm(norm(tokens_.norm, out_bias_, batch.num_hidden, batch.hidden, batch.hidden),
                        stream);
  }
  if (batch.num_logits == 0) return;
  const float* x = rows_with_logits(batch, c_.D, s.x, s.picked, kernels_, stream);
  kernels_.layer_norm(norm(tokens_.norm, out_bias_, batch.num_logits, x, s.y), stream);
  kernels_.linear({.rows = batch.num_logits, .W = tokens_.head_matrix(), .x = s.y, .y = logits},
                  stream);
}

}  // namespace
}  // namespace rwkv7

std::unique_ptr<const Model> load_rwkv7(Checkpoint& checkpoint, Backend& backend,
                                        const LoadOptions& options,
                                        const Checkpoint::Progress& progress) {
  return std::make_unique<rwkv7::Rwkv7>(checkpoint, backend, options, progress);
}

}  // namespace recurve
