// The xLSTM of the paper (Beck et al. 2024), as the research code trains it: mLSTM and sLSTM blocks
// in any order, with causal convolutions and block-diagonal projections. Not xLSTM-large, which is
// xlstm.cc. Source: NX-AI/xlstm xlstm/xlstm_lm_model.py, blocks/{mlstm,slstm}, components.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/families/xlstm_blocks_config.h"
#include "model/families/xlstm_blocks_weights.h"
#include "model/layers/head.h"
#include "model/layers/required_ops.h"
#include "model/load_model.h"
#include "model/special_ids.h"

namespace recurve {
namespace xlstm_blocks {
namespace {

// The package has no keys for these.
constexpr float kNormEps = 1e-5f;
constexpr float kCellEps = 1e-6f;
class XlstmBlocks final : public Model {
 public:
  XlstmBlocks(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
              const Checkpoint::Progress& progress);

  const ModelInfo& info() const override { return info_; }
  StateLayout state_layout() const override;
  size_t arena_bytes(const StepLimits& limits) const override;
  void forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
               float* logits) const override;

 private:
  // Activations of one step. What the two kinds of blocks use lies in the same places.
  struct Scratch {
    float* x;       // (rows, D) the residual stream
    float* y;       // (rows, D) normalised
    float* up;      // (rows, 2 inner); (rows, 2 F)
    float* conv;    // (rows, inner); (rows, D)
    float* qkv;     // (rows, 3 inner); gates (rows, 4 D)
    float* gates;   // (rows, 2 H)
    float* cell;    // (rows, 3 inner + 2 H): q, k, v, i, f
    float* h;       // (rows, inner); (rows, D) or (rows, F)
    float* picked;  // (logits, D)
  };
  std::vector<int64_t> widths() const;

  void fill_info(const Checkpoint& checkpoint);

  void norm(const VectorWeights& weights, int rows, int groups, int64_t width, const float* x,
            const float* residual, float* y, Stream& stream) const;
  void mlstm_layer(const Block& block, const Ragged& seqs, const StatePool& states,
                   const Scratch& scratch, Stream& stream) const;
  void mlstm_cell(const Block& block, const Ragged& seqs, const StatePool& states,
                  const Scratch& scratch, Stream& stream) const;
  void slstm_layer(const Block& block, const Ragged& seqs, const StatePool& states,
                   const Scratch& scratch, Stream& stream) const;
  void feed_forward(const SlstmWeights& weights, int rows, const Scratch& scratch,
                    Stream& stream) const;
  void head(const StepBatch& batch, const Scratch& scratch, float* logits, Stream& stream) const;

  Config c_;
  const Kernels& kernels_;
  LinearWeights embedding_;  // (V, D)
  LinearWeights lm_head_;    // (V, D); empty where tied
  VectorWeights out_norm_;   // (D); empty: none
  std::vector<Block> blocks_;
  ModelInfo info_;
};

XlstmBlocks::XlstmBlocks(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
                         const Checkpoint::Progress& progress)
    : c_(read_config(checkpoint)), kernels_(backend.kernels()) {
  require_ops(backend, "xlstm_blocks",
              {"embed", "gather_rows", "linear", "layer_norm", "causal_conv1d", "headwise_linear",
               "activation", "mlstm", "skip_gate", "rnn", "glu"});
  c_.state = require_state(backend, "xlstm_blocks", "mlstm", options.state);
  if (options.chunk > 0) c_.chunk = options.chunk;
  if (c_.any(false)) {
    const int H = static_cast<int>(c_.H), DH = static_cast<int>(c_.inner / c_.H);
    require_sizes(
        backend, "xlstm_blocks",
        MlstmArgs{.H = H, .DK = DH, .DV = DH, .chunk = c_.chunk, .C = {nullptr, c_.state}});
  }
  const std::string prefix =
      checkpoint.detect_prefix({"", "model.", "backbone."}, "token_embedding.weight");
  embedding_ =
      LinearWeights::load(backend, checkpoint, {{prefix + "token_embedding.weight", c_.vocab}},
                          c_.D, options.weights.tokens);
  const std::string stack = prefix + "xlstm_block_stack.";
  size_t first_state = 0;
  for (size_t b = 0; b < c_.slstm.size(); ++b) {
    blocks_.push_back(load_block(c_, checkpoint, backend, fmt::format("{}blocks.{}.", stack, b),
                                 c_.slstm[b], options.weights));
    blocks_.back().first_state = first_state;
    const bool convolution = (c_.slstm[b] ? c_.slstm_width : c_.width) > 0;
    first_state += (c_.slstm[b] ? 4 : 3) + (convolution ? 1 : 0);
  }
  if (c_.out_norm) {
    out_norm_ = load_norm(checkpoint, backend, stack + "post_blocks_norm.weight", c_.D);
  }
  const HeadSource head = find_head(checkpoint, prefix + "token_embedding.weight",
                                    {prefix + "lm_head.weight"}, c_.tied);
  info_.head = head.words;
  c_.tied = head.is_embedding;
  if (!c_.tied) {
    lm_head_ = LinearWeights::load(backend, checkpoint, {{prefix + "lm_head.weight", c_.vocab}},
                                   c_.D, options.weights.tokens);
  }
  checkpoint.finish(progress);
  fill_info(checkpoint);
}

void XlstmBlocks::fill_info(const Checkpoint& checkpoint) {
  WeightTally tally;
  tally.add(embedding_);
  tally.add(lm_head_);
  tally.add(out_norm_);
  for (const Block& block : blocks_) add_to(tally, block);
  info_.parameters = tally.parameters;
  info_.weight_bytes = tally.bytes;
  info_.family = "xlstm_blocks";
  const auto slstm_blocks = std::count(c_.slstm.begin(), c_.slstm.end(), true);
  info_.description = fmt::format("{} mLSTM and {} sLSTM blocks, width {}",
                                  c_.blocks - slstm_blocks, slstm_blocks, c_.D);
  info_.vocab = c_.vocab;
  info_.width = c_.D;
  info_.chunk = c_.chunk;
  set_special_ids(read_special_ids(checkpoint), &info_);
}

StateLayout XlstmBlocks::state_layout() const {
  StateLayout layout;
  for (int b = 0; b < static_cast<int>(c_.blocks); ++b) {
    const auto add = [&](const char* name, std::vector<int64_t> shape, DType type = DType::kF32) {
      layout.arrays.push_back({.name = name, .layer = b, .dtype = type, .shape = std::move(shape)});
    };
    if (c_.slstm[static_cast<size_t>(b)]) {
      for (const char* name : {"h", "c", "sn", "sm"}) {
        add(name, {c_.slstm_H, c_.D / c_.slstm_H});
      }
      if (c_.slstm_width > 0) add("conv", {c_.D, c_.slstm_width - 1});
    } else {
      const int64_t DH = c_.inner / c_.H;
      add("C", {c_.H, DH, DH}, c_.state);
      add("n", {c_.H, DH});
      add("m", {c_.H});
      if (c_.width > 0) add("conv", {c_.inner, c_.width - 1});
    }
  }
  return layout;
}

// The widths of the rows of Scratch, but for `picked`, in its order.
std::vector<int64_t> XlstmBlocks::widths() const {
  const bool mlstm = c_.any(false);
  return {c_.D,
          c_.D,
          std::max(2 * c_.inner, 2 * c_.F),
          std::max(c_.inner, c_.D),
          std::max(3 * c_.inner, 4 * c_.D),
          mlstm ? 2 * c_.H : 0,
          mlstm ? 3 * c_.inner + 2 * c_.H : 0,
          std::max({c_.inner, c_.D, c_.F})};
}

size_t XlstmBlocks::arena_bytes(const StepLimits& limits) const {
  const auto bytes_for = [](int count, int64_t width) {
    return Arena::bytes_for(static_cast<size_t>(count) * static_cast<size_t>(width));
  };
  size_t bytes = bytes_for(limits.logits, c_.D);
  for (const int64_t width : widths()) bytes += bytes_for(limits.rows, width);
  return bytes;
}

void XlstmBlocks::forward(const StepBatch& batch, const StatePool& states, Arena& arena,
                          Stream& stream, float* logits) const {
  const int rows = batch.seqs.rows;
  arena.reset();
  std::vector<float*> a;
  for (const int64_t width : widths()) {
    a.push_back(arena.floats(static_cast<size_t>(rows) * static_cast<size_t>(width)));
  }
  const size_t picked = static_cast<size_t>(batch.num_logits) * static_cast<size_t>(c_.D);
  const Scratch s{a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], arena.floats(picked)};

  kernels_.embed({.rows = rows, .E = embedding_.matrix(), .token = batch.tokens, .x = s.x}, stream);
  for (size_t b = 0; b < blocks_.size(); ++b) {
    norm(blocks_[b].norm, rows, 1, c_.D, s.x, nullptr, s.y, stream);
    if (c_.slstm[b]) {
      slstm_layer(blocks_[b], batch.seqs, states, s, stream);
      if (c_.F > 0) feed_forward(blocks_[b].slstm, rows, s, stream);
    } else {
      mlstm_layer(blocks_[b], batch.seqs, states, s, stream);
    }
  }
  head(batch, s, logits, stream);
}

void XlstmBlocks::norm(const VectorWeights& weights, int rows, int groups, int64_t width,
                       const float* x, const float* residual, float* y, Stream& stream) const {
  kernels_.layer_norm({.rows = rows,
                       .D = static_cast<int>(width),
                       .G = groups,
                       .eps = kNormEps,
                       .x = x,
                       .w = weights.data(),
                       .b = nullptr,
                       .residual = residual,
                       .y = y},
                      stream);
}

void XlstmBlocks::mlstm_layer(const Block& block, const Ragged& seqs, const StatePool& states,
                              const Scratch& s, Stream& stream) const {
  const MlstmWeights& w = block.mlstm;
  const int rows = seqs.rows, inner = static_cast<int>(c_.inner);
  kernels_.linear({.rows = rows, .W = w.up.matrix(), .bias = w.up.bias(), .x = s.y, .y = s.up},
                  stream);
  const bool convolution = c_.width > 0;
  if (convolution) {
    kernels_.causal_conv1d({.seqs = seqs,
                            .D = inner,
                            .width = static_cast<int>(c_.width),
                            .silu = true,
                            .x_stride = 2 * inner,
                            .x = s.up,
                            .w = w.conv.data(),
                            .bias = w.conv_bias.data(),
                            .state = states.array(block.first_state + 3),
                            .y = s.conv},
                           stream);
  }
  const float* c = convolution ? s.conv : s.up;
  const int c_stride = convolution ? inner : 2 * inner;
  const auto headwise = [&](const HostMatrix& W, const VectorWeights& bias, const float* x,
                            int x_stride, float* y) {
    kernels_.headwise_linear({.rows = rows,
                              .H = static_cast<int>(c_.inner / c_.block),
                              .W = W.matrix(),
                              .x_stride = x_stride,
                              .y_stride = 3 * inner,
                              .x = x,
                              .y = y,
                              .bias = bias.data()},
                             stream);
  };
  headwise(w.q, w.q_bias, c, c_stride, s.qkv);
  headwise(w.k, w.k_bias, c, c_stride, s.qkv + inner);
  headwise(w.v, w.v_bias, s.up, 2 * inner, s.qkv + 2 * inner);
  mlstm_cell(block, seqs, states, s, stream);
  norm(w.head_norm, rows, static_cast<int>(c_.H), c_.inner, s.h, nullptr, s.h, stream);
  kernels_.skip_gate({.rows = rows,
                      .D = inner,
                      .x_stride = c_stride,
                      .z_stride = 2 * inner,
                      .h = s.h,
                      .skip = w.skip.data(),
                      .x = c,
                      .z = s.up + inner,
                      .y = s.h},
                     stream);
  kernels_.linear({.rows = rows,
                   .W = w.down.matrix(),
                   .bias = w.down.bias(),
                   .residual = s.x,
                   .x = s.h,
                   .y = s.x},
                  stream);
}

// s.h from s.qkv. The gates see q, k and v, so they are made after them and all are brought into
// one row, as the op wants them. The research code divides k by sqrt(DH) where the op divides q, so
// its states are smaller by that.
void XlstmBlocks::mlstm_cell(const Block& block, const Ragged& seqs, const StatePool& states,
                             const Scratch& s, Stream& stream) const {
  const MlstmWeights& w = block.mlstm;
  const int rows = seqs.rows, inner = static_cast<int>(c_.inner), H = static_cast<int>(c_.H);
  const int stride = 3 * inner + 2 * H;
  kernels_.linear(
      {.rows = rows, .W = w.gates.matrix(), .bias = w.gates.bias(), .x = s.qkv, .y = s.gates},
      stream);
  const auto place = [&](const float* from, int from_stride, int width, float scale, float* to) {
    kernels_.activation({.rows = rows,
                         .width = width,
                         .f = Activation::kIdentity,
                         .scale = scale,
                         .floor = -INFINITY,
                         .x_stride = from_stride,
                         .y_stride = stride,
                         .x = from,
                         .y = to},
                        stream);
  };
  const float root = std::sqrt(static_cast<float>(inner / H));
  place(s.qkv, 3 * inner, inner, root, s.cell);
  place(s.qkv + inner, 3 * inner, inner, 1 / root, s.cell + inner);
  place(s.qkv + 2 * inner, 3 * inner, inner, 1, s.cell + 2 * inner);
  place(s.gates, 2 * H, 2 * H, 1, s.cell + 3 * inner);
  kernels_.mlstm({.seqs = seqs,
                  .H = H,
                  .DK = inner / H,
                  .DV = inner / H,
                  .chunk = c_.chunk,
                  .gate_soft_cap = 0,
                  .eps = kCellEps,
                  .stride = stride,
                  .q = s.cell,
                  .k = s.cell + inner,
                  .v = s.cell + 2 * inner,
                  .i = s.cell + 3 * inner,
                  .f = s.cell + 3 * inner + H,
                  .C = states.data(block.first_state),
                  .n = states.array(block.first_state + 1),
                  .m = states.array(block.first_state + 2),
                  .h = s.h},
                 stream);
}

void XlstmBlocks::slstm_layer(const Block& block, const Ragged& seqs, const StatePool& states,
                              const Scratch& s, Stream& stream) const {
  const SlstmWeights& w = block.slstm;
  const int rows = seqs.rows, D = static_cast<int>(c_.D), H = static_cast<int>(c_.slstm_H);
  const float* c = s.y;
  if (c_.slstm_width > 0) {
    kernels_.causal_conv1d({.seqs = seqs,
                            .D = D,
                            .width = static_cast<int>(c_.slstm_width),
                            .silu = true,
                            .x_stride = D,
                            .x = s.y,
                            .w = w.conv.data(),
                            .bias = w.conv_bias.data(),
                            .state = states.array(block.first_state + 4),
                            .y = s.conv},
                           stream);
    c = s.conv;
  }
  const auto headwise = [&](const HostMatrix& W, const float* x, int gate) {
    kernels_.headwise_linear({.rows = rows,
                              .H = H,
                              .W = W.matrix(),
                              .x_stride = D,
                              .y_stride = 4 * D,
                              .x = x,
                              .y = s.qkv + gate * D},
                             stream);
  };
  headwise(w.i, c, 0);
  headwise(w.f, c, 1);
  headwise(w.z, s.y, 2);
  headwise(w.o, s.y, 3);
  kernels_.rnn({.seqs = seqs,
                .cell = RnnCell::kSlstm,
                .H = H,
                .DH = D / H,
                .n_min = 0,
                .x_stride = 4 * D,
                .x = s.qkv,
                .R = w.R.matrix(),
                .b = w.bias.data(),
                .h = states.array(block.first_state),
                .c = states.array(block.first_state + 1),
                .n = states.array(block.first_state + 2),
                .m = states.array(block.first_state + 3),
                .y = s.h},
               stream);
  norm(w.head_norm, rows, H, c_.D, s.h, s.x, s.x, stream);
}

void XlstmBlocks::feed_forward(const SlstmWeights& w, int rows, const Scratch& s,
                               Stream& stream) const {
  norm(w.ffn_norm, rows, 1, c_.D, s.x, nullptr, s.y, stream);
  kernels_.linear(
      {.rows = rows, .W = w.ffn_up.matrix(), .bias = w.ffn_up.bias(), .x = s.y, .y = s.up}, stream);
  kernels_.glu({.rows = rows,
                .F = static_cast<int>(c_.F),
                .f = c_.ffn_activation,
                .gate_up = s.up,
                .y = s.h},
               stream);
  kernels_.linear({.rows = rows,
                   .W = w.ffn_down.matrix(),
                   .bias = w.ffn_down.bias(),
                   .residual = s.x,
                   .x = s.h,
                   .y = s.x},
                  stream);
}

void XlstmBlocks::head(const StepBatch& batch, const Scratch& s, float* logits,
                       Stream& stream) const {
  if (batch.num_hidden > 0) {
    copy_hidden(batch, c_.D, s.x, kernels_, stream);
    if (c_.out_norm) {
      norm(out_norm_, batch.num_hidden, 1, c_.D, batch.hidden, nullptr, batch.hidden, stream);
    }
  }
  const int count = batch.num_logits;
  if (count == 0) return;
  const float* wanted = rows_with_logits(batch, c_.D, s.x, s.picked, kernels_, stream);
  if (c_.out_norm) {
    norm(out_norm_, count, 1, c_.D, wanted, nullptr, s.picked, stream);
    wanted = s.picked;
  }
  const Matrix& W = c_.tied ? embedding_.matrix() : lm_head_.matrix();
  kernels_.linear({.rows = count, .W = W, .x = wanted, .y = logits}, stream);
}

}  // namespace
}  // namespace xlstm_blocks

std::unique_ptr<const Model> load_xlstm_blocks(Checkpoint& checkpoint, Backend& backend,
                                               const LoadOptions& options,
                                               const Checkpoint::Progress& progress) {
  return std::make_unique<xlstm_blocks::XlstmBlocks>(checkpoint, backend, options, progress);
}

}  // namespace recurve
