// RecurrentGemma, Google's Griffin: blocks of a gated linear recurrence (kernels/ops/rg_lru.h) and,
// every third one, of attention over the last rows of a session (kernels/ops/ring_attention.h),
// each with a gated feed-forward layer. So a state has one size, however long the session. Source:
// transformers' modeling_recurrent_gemma.py; De et al. 2024 (Griffin). Google's own code has a
// window that is one row longer.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "kernels/bf16.h"
#include "model/families/recurrent_gemma_block.h"
#include "model/layers/head.h"
#include "model/layers/required_ops.h"
#include "model/load_model.h"
#include "model/special_ids.h"

namespace recurve {
namespace recurrent_gemma {
namespace {

class RecurrentGemma final : public Model {
 public:
  RecurrentGemma(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
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
    float* in;          // (rows, 2 lru) or (rows, qkv)
    float* u;           // (rows, lru) after the convolution
    float* input;       // (rows, lru) gates before their sigmoid
    float* recurrence;  // (rows, lru)
    float* y;           // (rows, lru) or (rows, H head)
    int32_t* position;  // (rows)
    float* gate_up;     // (rows, 2 F)
    float* hidden;      // (rows, F)
    float* picked;      // (logits, D)
  };
  std::vector<int64_t> widths() const;
  Scratch take_scratch(Arena& arena, int rows, int logits, Residual& x) const;
  void fill_info(const Checkpoint& checkpoint);

  void embed(const StepBatch& batch, float* x, Stream& stream) const;
  void recurrence(const Block& block, size_t first, const Ragged& seqs, const StatePool& states,
                  const Scratch& scratch, Stream& stream) const;
  void gate(const Gate& gate, int rows, const float* u, float* y, Stream& stream) const;
  void attention(const Block& block, size_t first, const Ragged& seqs, const StatePool& states,
                 const Scratch& scratch, Stream& stream) const;
  void feed_forward(const Block& block, const Residual::Reader& next, const Scratch& scratch,
                    Stream& stream) const;

  Config c_;
  const Kernels& kernels_;
  TokenWeights tokens_;
  std::vector<Block> blocks_;
  VectorWeights frequency_;  // (rotary / 2)
  ModelInfo info_;
};

RecurrentGemma::RecurrentGemma(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
                               const Checkpoint::Progress& progress)
    : c_(read_config(checkpoint)), kernels_(backend.kernels()) {
  require_ops(backend, "recurrent_gemma",
              {"embed", "gather_rows", "linear", "activation", "glu", "causal_conv1d",
               "headwise_linear", "positions", "rotary", "rg_lru", "ring_attention"});
  if (options.chunk > 0) c_.chunk = options.chunk;
  const std::string prefix = checkpoint.detect_prefix({"model.", ""}, "final_norm.weight");
  tokens_ =
      load_token_weights(backend, checkpoint, prefix, "", c_.vocab, c_.D, c_.tied, options.weights);
  tokens_.norm =
      VectorWeights::load_unit_offset(backend, checkpoint, prefix + "final_norm.weight", c_.D);
  for (int64_t b = 0; b < c_.blocks(); ++b) {
    blocks_.push_back(load_block(c_, checkpoint, backend, fmt::format("{}layers.{}.", prefix, b),
                                 c_.attends[static_cast<size_t>(b)], options.weights));
  }
  frequency_ = c_.rotary.frequencies(backend);
  checkpoint.finish(progress);
  fill_info(checkpoint);
}

void RecurrentGemma::fill_info(const Checkpoint& checkpoint) {
  WeightTally tally;
  tally.add(tokens_);
  for (const Block& block : blocks_) add_to(tally, block);
  info_.parameters = tally.parameters;
  info_.weight_bytes = tally.bytes;
  info_.family = "recurrent_gemma";
  info_.description = fmt::format(
      "{} blocks, width {}, recurrence {}, {} heads of {} over {} rows, feed-forward {}",
      c_.blocks(), c_.D, c_.lru, c_.H, c_.head, c_.window, c_.F);
  info_.head = tokens_.head_source;
  info_.vocab = c_.vocab;
  info_.width = c_.D;
  info_.chunk = c_.chunk;
  set_special_ids(read_special_ids(checkpoint), &info_);
}

// Two arrays a block, and behind them how far the session has come. What is attended to is a piece
// by itself: a token changes a row of each ring, and all of the rest.
StateLayout RecurrentGemma::state_layout() const {
  StateLayout layout;
  for (int b = 0; b < static_cast<int>(c_.blocks()); ++b) {
    if (c_.attends[static_cast<size_t>(b)]) {
      for (const char* name : {"ring_k", "ring_v"}) {
        layout.arrays.push_back({.name = name,
                                 .layer = b,
                                 .shape = {c_.window, c_.HK, c_.head},
                                 .piece = "window",
                                 .growth = StateGrowth::kRing});
      }
    } else {
      layout.arrays.push_back({.name = "h", .layer = b, .shape = {c_.lru}});
      layout.arrays.push_back({.name = "conv", .layer = b, .shape = {c_.lru, c_.width - 1}});
    }
  }
  layout.arrays.push_back(
      {.name = "position", .dtype = DType::kI32, .shape = {1}, .values = StateValues::kPosition});
  return layout;
}

// The widths of the rows of Scratch, but for x and `picked`, in its order.
std::vector<int64_t> RecurrentGemma::widths() const {
  return {std::max(2 * c_.lru, c_.qkv()),   c_.lru, c_.lru,   c_.lru,
          std::max(c_.lru, c_.H * c_.head), 1,      2 * c_.F, c_.F};
}

size_t RecurrentGemma::arena_bytes(const StepLimits& limits) const {
  const auto bytes_for = [](int count, int64_t width) {
    return Arena::bytes_for(static_cast<size_t>(count) * static_cast<size_t>(width));
  };
  size_t bytes = Residual::bytes_for(kernels_, limits.rows, c_.D) + bytes_for(limits.logits, c_.D);
  for (const int64_t width : widths()) bytes += bytes_for(limits.rows, width);
  return bytes;
}

RecurrentGemma::Scratch RecurrentGemma::take_scratch(Arena& arena, int rows, int logits,
                                                     Residual& x) const {
  std::vector<float*> a;
  for (const int64_t width : widths()) {
    a.push_back(arena.floats(static_cast<size_t>(rows) * static_cast<size_t>(width)));
  }
  static_assert(sizeof(float) == sizeof(int32_t));
  float* picked = arena.floats(static_cast<size_t>(logits) * static_cast<size_t>(c_.D));
  return {x, a[0], a[1], a[2], a[3], a[4], reinterpret_cast<int32_t*>(a[5]), a[6], a[7], picked};
}

void RecurrentGemma::forward(const StepBatch& batch, const StatePool& states, Arena& arena,
                             Stream& stream, float* logits) const {
  const int rows = batch.seqs.rows;
  arena.reset();
  Residual x(kernels_, arena, rows, c_.D);
  const Scratch s = take_scratch(arena, rows, batch.num_logits, x);
  const Head last{
      .norm = &tokens_.norm, .W = tokens_.head_matrix(), .eps = c_.eps, .soft_cap = c_.soft_cap};
  embed(batch, x.x(), stream);
  kernels_.positions({.seqs = batch.seqs,
                      .count = states.array<int32_t>(2 * blocks_.size()),
                      .position = s.position},
                     stream);
  for (size_t b = 0; b < blocks_.size(); ++b) {
    const Block& block = blocks_[b];
    kernels_.linear(x.read(block.reader(), c_.eps, {.bias = block.in.bias(), .y = s.in}), stream);
    if (block.attends) {
      attention(block, 2 * b, batch.seqs, states, s, stream);
    } else {
      recurrence(block, 2 * b, batch.seqs, states, s, stream);
    }
    kernels_.linear(
        x.add({.W = block.out.matrix(), .bias = block.out.bias(), .x = s.y}, block.ffn_reader()),
        stream);
    feed_forward(block, reader_after(blocks_, b, last), s, stream);
  }
  head(last, batch, x, s.picked, logits, kernels_, stream);
}

// Times the root of the width, which transformers keeps in bf16 whatever the weights are in.
void RecurrentGemma::embed(const StepBatch& batch, float* x, Stream& stream) const {
  const int rows = batch.seqs.rows, D = static_cast<int>(c_.D);
  kernels_.embed({.rows = rows, .E = tokens_.embedding.matrix(), .token = batch.tokens, .x = x},
                 stream);
  kernels_.activation(
      {.rows = rows,
       .width = D,
       .f = Activation::kIdentity,
       .scale = bf16_to_f32(f32_to_bf16(static_cast<float>(std::sqrt(static_cast<double>(c_.D))))),
       .floor = -std::numeric_limits<float>::infinity(),
       .x_stride = D,
       .y_stride = D,
       .x = x,
       .y = x},
      stream);
}

void RecurrentGemma::recurrence(const Block& block, size_t first, const Ragged& seqs,
                                const StatePool& states, const Scratch& s, Stream& stream) const {
  const int lru = static_cast<int>(c_.lru);
  kernels_.causal_conv1d({.seqs = seqs,
                          .D = lru,
                          .width = static_cast<int>(c_.width),
                          .silu = false,
                          .x_stride = 2 * lru,
                          .x = s.in,
                          .w = block.conv.data(),
                          .bias = block.conv_bias.data(),
                          .state = states.array(first + 1),
                          .y = s.u},
                         stream);
  gate(block.input, seqs.rows, s.u, s.input, stream);
  gate(block.recurrence, seqs.rows, s.u, s.recurrence, stream);
  kernels_.rg_lru({.seqs = seqs,
                   .D = lru,
                   .chunk = c_.chunk,
                   .branch_stride = 2 * lru,
                   .u = s.u,
                   .i = s.input,
                   .r = s.recurrence,
                   .branch = s.in + lru,
                   .rate = block.rate.data(),
                   .position = s.position,
                   .h = states.array(first),
                   .y = s.y},
                  stream);
}

void RecurrentGemma::gate(const Gate& gate, int rows, const float* u, float* y,
                          Stream& stream) const {
  kernels_.headwise_linear({.rows = rows,
                            .H = static_cast<int>(c_.H),
                            .W = gate.W.matrix(),
                            .x_stride = static_cast<int>(c_.lru),
                            .y_stride = static_cast<int>(c_.lru),
                            .x = u,
                            .y = y,
                            .bias = gate.b.data()},
                           stream);
}

void RecurrentGemma::attention(const Block&, size_t first, const Ragged& seqs,
                               const StatePool& states, const Scratch& s, Stream& stream) const {
  const int stride = static_cast<int>(c_.qkv());
  const float* k = s.in + c_.H * c_.head;
  kernels_.rotary({.rows = seqs.rows,
                   .H = static_cast<int>(c_.H + c_.HK),
                   .D = static_cast<int>(c_.rotary.channels),
                   .stride = stride,
                   .position = s.position,
                   .frequency = frequency_.data(),
                   .x = s.in,
                   .head_stride = static_cast<int>(c_.head)},
                  stream);
  kernels_.ring_attention({.seqs = seqs,
                           .H = static_cast<int>(c_.H),
                           .HK = static_cast<int>(c_.HK),
                           .D = static_cast<int>(c_.head),
                           .W = static_cast<int>(c_.window),
                           .scale = 1.0f / std::sqrt(static_cast<float>(c_.head)),
                           .q_stride = stride,
                           .k_stride = stride,
                           .v_stride = stride,
                           .q = s.in,
                           .k = k,
                           .v = k + c_.HK * c_.head,
                           .position = s.position,
                           .ring_k = states.array(first),
                           .ring_v = states.array(first + 1),
                           .o = s.y},
                          stream);
}

void RecurrentGemma::feed_forward(const Block& block, const Residual::Reader& next,
                                  const Scratch& s, Stream& stream) const {
  const LinearArgs up =
      s.x.read(block.ffn_reader(), c_.eps, {.bias = block.gate_up.bias(), .y = s.gate_up});
  kernels_.linear(up, stream);
  kernels_.glu({.rows = up.rows,
                .F = static_cast<int>(c_.F),
                .f = Activation::kGeluTanh,
                .gate_up = s.gate_up,
                .y = s.hidden},
               stream);
  kernels_.linear(
      s.x.add({.W = block.down.matrix(), .bias = block.down.bias(), .x = s.hidden}, next), stream);
}

}  // namespace
}  // namespace recurrent_gemma

std::unique_ptr<const Model> load_recurrent_gemma(Checkpoint& checkpoint, Backend& backend,
                                                  const LoadOptions& options,
                                                  const Checkpoint::Progress& progress) {
  return std::make_unique<recurrent_gemma::RecurrentGemma>(checkpoint, backend, options, progress);
}

}  // namespace recurve
