// xLSTM-large, the family of NX-AI/xLSTM-7b: blocks of an mLSTM layer and a gated feed-forward
// layer. Source: NX-AI/xlstm xlstm/xlstm_large/model.py and transformers models/xlstm. The cell
// with a sigmoid input gate: Beck et al. 2025 (TFLA), sec. 4.1, and mlstm_kernels'
// backend_module.py, which divides by a normaliser that the paper does without; normalize_siging
// says which.
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "kernels/fusion.h"
#include "model/families/xlstm_config.h"
#include "model/layers/feed_forward.h"
#include "model/layers/head.h"
#include "model/layers/required_ops.h"
#include "model/layers/token_weights.h"
#include "model/load_model.h"
#include "model/special_ids.h"

namespace recurve {
namespace {

using xlstm::Config;

struct Block {
  VectorWeights norm;       // (D)
  LinearWeights qkvoif;     // (2 H DK + 2 H DV + 2 H, D), the gates' biases with it
  VectorWeights head_norm;  // (H, DV)
  LinearWeights out;        // (D, H DV)
  FeedForward ffn;

  Residual::Reader reader() const { return {qkvoif.matrix(), &norm}; }
};

class Xlstm final : public Model {
 public:
  Xlstm(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
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
    float* qkvoif;  // (rows, projected)
    float* gates;   // (rows, 2 H) logs of i and f, with a sigmoid gate
    float* h;       // (rows, H DV)
    float* hidden;  // (rows, F)
    float* picked;  // (logits, D)
  };
  Block load_block(Checkpoint& checkpoint, Backend& backend, const std::string& prefix,
                   const WeightFormats& formats) const;
  void mlstm_layer(const Block& block, size_t index, const Ragged& seqs, const StatePool& states,
                   const Scratch& scratch, Stream& stream) const;
  void exponential_cell(const Block& block, size_t index, const Ragged& seqs,
                        const StatePool& states, const Scratch& scratch, const Activations& h,
                        Stream& stream) const;
  void sigmoid_cell(const Block& block, size_t index, const Ragged& seqs, const StatePool& states,
                    const Scratch& scratch, const Activations& h, Stream& stream) const;
  void sigmoid_gates(int rows, const Scratch& scratch, Stream& stream) const;
  void fill_info(const Checkpoint& checkpoint);

  Config c_;
  const Kernels& kernels_;
  TokenWeights tokens_;
  std::vector<Block> blocks_;
  ModelInfo info_;
};

void require_kernels(const Backend& backend, const Config& c) {
  const int H = static_cast<int>(c.H), DK = static_cast<int>(c.DK), DV = static_cast<int>(c.DV);
  const StateData C(nullptr, c.state);
  require_ops(backend, "xlstm", {"embed", "gather_rows", "linear"});
  if (c.sigmoid_gate) {
    const GlaDecay decay = GlaDecay::kToken;
    require_ops(backend, "xlstm", {"gla", "activation", "head_norm_gate"});
    if (c.gate_soft_cap > 0) require_ops(backend, "xlstm", {"soft_cap"});
    require_sizes(backend, "xlstm",
                  GlaArgs{.H = H, .DK = DK, .DV = DV, .chunk = c.chunk, .decay = decay, .S = C});
  } else {
    require_ops(backend, "xlstm", {"mlstm"});
    require_sizes(backend, "xlstm",
                  MlstmArgs{.H = H, .DK = DK, .DV = DV, .chunk = c.chunk, .C = C});
  }
}

Xlstm::Xlstm(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
             const Checkpoint::Progress& progress)
    : c_(xlstm::read_config(checkpoint)), kernels_(backend.kernels()) {
  c_.state = require_state(backend, "xlstm", c_.sigmoid_gate ? "gla" : "mlstm", options.state);
  if (options.chunk > 0) c_.chunk = options.chunk;
  require_kernels(backend, c_);
  const std::string prefix =
      checkpoint.detect_prefix({"backbone.", "model.", ""}, "out_norm.weight");
  tokens_ = load_token_weights(backend, checkpoint, prefix, "out_norm.weight", c_.vocab, c_.D,
                               c_.tied, options.weights);
  for (int64_t b = 0; b < c_.blocks; ++b) {
    blocks_.push_back(
        load_block(checkpoint, backend, fmt::format("{}blocks.{}.", prefix, b), options.weights));
  }
  checkpoint.finish(progress);
  fill_info(checkpoint);
}

Block Xlstm::load_block(Checkpoint& checkpoint, Backend& backend, const std::string& prefix,
                        const WeightFormats& formats) const {
  const int64_t qk = c_.qk(), v = c_.v();
  using Parts = std::vector<LinearWeights::Part>;
  const std::string m = prefix + "mlstm_layer.", f = prefix + "ffn.";
  const Parts qkvoif = c_.fused
                           ? Parts{{m + "qkv_opreact.weight", 2 * qk + 2 * v},
                                   {m + "ifgate_preact.weight", 2 * c_.H, m + "ifgate_preact.bias"}}
                           : Parts{{m + "q.weight", qk},
                                   {m + "k.weight", qk},
                                   {m + "v.weight", v},
                                   {m + "ogate_preact.weight", v},
                                   {m + "igate_preact.weight", c_.H, m + "igate_preact.bias"},
                                   {m + "fgate_preact.weight", c_.H, m + "fgate_preact.bias"}};
  const Parts gate_up =
      c_.fused ? Parts{{f + "proj_up_gate_z.weight", 2 * c_.F}}
               : Parts{{f + "proj_up_gate.weight", c_.F}, {f + "proj_up.weight", c_.F}};
  const auto vector = [&](const std::string& name, std::vector<Shape> shapes) {
    return VectorWeights::load(backend, checkpoint, prefix + name, shapes);
  };
  const auto linear = [&](const Parts& parts, int64_t K) {
    return LinearWeights::load(backend, checkpoint, parts, K, formats.linear);
  };
  return {.norm = vector("norm_mlstm.weight", {{c_.D}}),
          .qkvoif = linear(qkvoif, c_.D),
          .head_norm = vector("mlstm_layer.multihead_norm.weight", {{v}, {c_.H, c_.DV}}),
          .out = linear({{m + "out_proj.weight", c_.D}}, v),
          .ffn = {.norm = vector("norm_ffn.weight", {{c_.D}}),
                  .up = linear(gate_up, c_.D),
                  .down = linear({{f + "proj_down.weight", c_.D}}, c_.F)}};
}

void Xlstm::fill_info(const Checkpoint& checkpoint) {
  WeightTally tally;
  tally.add(tokens_);
  for (const Block& b : blocks_) {
    for (const LinearWeights* w : {&b.qkvoif, &b.out, &b.ffn.up, &b.ffn.down}) tally.add(*w);
    for (const VectorWeights* w : {&b.norm, &b.head_norm, &b.ffn.norm}) tally.add(*w);
  }
  info_.parameters = tally.parameters;
  info_.weight_bytes = tally.bytes;
  info_.family = "xlstm";
  info_.description = fmt::format("{} blocks, width {}, {} heads of {} x {}, feed-forward {}",
                                  c_.blocks, c_.D, c_.H, c_.DK, c_.DV, c_.F);
  info_.head = tokens_.head_source;
  info_.vocab = c_.vocab;
  info_.width = c_.D;
  info_.chunk = c_.chunk;
  // xLSTM-large is trained with BOS before every text (xlstm_large/generate.py).
  set_special_ids(read_special_ids(checkpoint), &info_, true);
}

StateLayout Xlstm::state_layout() const {
  StateLayout layout;
  const std::map<std::string_view, std::vector<int64_t>> shapes = {
      {"C", {c_.H, c_.DK, c_.DV}}, {"n", {c_.H, c_.DK}}, {"m", {c_.H}}};
  for (int b = 0; b < static_cast<int>(c_.blocks); ++b) {
    for (const char* name : c_.states()) {
      const DType type = std::string_view(name) == "C" ? c_.state : DType::kF32;
      layout.arrays.push_back({.name = name, .layer = b, .dtype = type, .shape = shapes.at(name)});
    }
  }
  return layout;
}

size_t Xlstm::arena_bytes(const StepLimits& limits) const {
  const size_t rows = static_cast<size_t>(limits.rows);
  const auto bytes_for = [](size_t count, int64_t width) {
    return Arena::bytes_for(count * static_cast<size_t>(width));
  };
  return Residual::bytes_for(kernels_, limits.rows, c_.D) + bytes_for(rows, c_.projected()) +
         bytes_for(rows, c_.sigmoid_gate ? 2 * c_.H : 0) + bytes_for(rows, c_.v()) +
         bytes_for(rows, c_.F) + bytes_for(static_cast<size_t>(limits.logits), c_.D);
}

void Xlstm::forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
                    float* logits) const {
  const int rows = batch.seqs.rows;
  const auto take = [&](int count, int64_t width) {
    return arena.floats(static_cast<size_t>(count) * static_cast<size_t>(width));
  };
  arena.reset();
  Residual x(kernels_, arena, rows, c_.D);
  const Scratch s{.x = x,
                  .qkvoif = take(rows, c_.projected()),
                  .gates = take(rows, c_.sigmoid_gate ? 2 * c_.H : 0),
                  .h = take(rows, c_.v()),
                  .hidden = take(rows, c_.F),
                  .picked = take(batch.num_logits, c_.D)};

  const Head last{.norm = &tokens_.norm,
                  .W = tokens_.head_matrix(),
                  .eps = c_.norm_eps,
                  .soft_cap = c_.logit_soft_cap};
  kernels_.embed({.rows = rows, .E = tokens_.embedding.matrix(), .token = batch.tokens, .x = x.x()},
                 stream);
  for (size_t b = 0; b < blocks_.size(); ++b) {
    mlstm_layer(blocks_[b], b, batch.seqs, states, s, stream);
    feed_forward(blocks_[b].ffn, c_.norm_eps, x, reader_after(blocks_, b, last), s.hidden, kernels_,
                 stream);
  }
  head(last, batch, x, s.picked, logits, kernels_, stream);
}

void Xlstm::mlstm_layer(const Block& block, size_t index, const Ragged& seqs,
                        const StatePool& states, const Scratch& s, Stream& stream) const {
  kernels_.linear(
      s.x.read(block.reader(), c_.norm_eps, {.bias = block.qkvoif.bias(), .y = s.qkvoif}), stream);
  // The feed-forward part does not use its memory yet.
  const Activations h = rows_for(kernels_, block.out.matrix(), s.h, s.hidden, c_.F);
  if (c_.sigmoid_gate) {
    sigmoid_cell(block, index, seqs, states, s, h, stream);
  } else {
    exponential_cell(block, index, seqs, states, s, h, stream);
  }
  kernels_.linear(
      s.x.add({.W = block.out.matrix(), .x = h.f32, .x_bf16 = h.bf16}, block.ffn.reader()), stream);
}

void Xlstm::exponential_cell(const Block& block, size_t index, const Ragged& seqs,
                             const StatePool& states, const Scratch& s, const Activations& h,
                             Stream& stream) const {
  const float* i = s.qkvoif + 2 * (c_.qk() + c_.v());
  kernels_.mlstm({.seqs = seqs,
                  .H = static_cast<int>(c_.H),
                  .DK = static_cast<int>(c_.DK),
                  .DV = static_cast<int>(c_.DV),
                  .chunk = c_.chunk,
                  .gate_soft_cap = c_.gate_soft_cap,
                  .eps = c_.cell_eps,
                  .stride = static_cast<int>(c_.projected()),
                  .q = s.qkvoif,
                  .k = s.qkvoif + c_.qk(),
                  .v = s.qkvoif + 2 * c_.qk(),
                  .i = i,
                  .f = i + c_.H,
                  .C = states.data(3 * index),
                  .n = states.array(3 * index + 1),
                  .m = states.array(3 * index + 2),
                  .h = h.f32,
                  .o = s.qkvoif + 2 * c_.qk() + c_.v(),
                  .head_norm = block.head_norm.data(),
                  .head_norm_eps = c_.norm_eps,
                  .h_bf16 = h.bf16},
                 stream);
}

void Xlstm::sigmoid_cell(const Block& block, size_t index, const Ragged& seqs,
                         const StatePool& states, const Scratch& s, const Activations& h,
                         Stream& stream) const {
  const int stride = static_cast<int>(c_.projected());
  const size_t first = c_.states().size() * index;
  sigmoid_gates(seqs.rows, s, stream);
  kernels_.gla({.seqs = seqs,
                .H = static_cast<int>(c_.H),
                .DK = static_cast<int>(c_.DK),
                .DV = static_cast<int>(c_.DV),
                .chunk = c_.chunk,
                .decay = GlaDecay::kToken,
                .scale = 1 / std::sqrt(static_cast<float>(c_.DK)),
                .eps = c_.cell_eps,
                .bounded = true,
                .q_stride = stride,
                .k_stride = stride,
                .v_stride = stride,
                .g_stride = static_cast<int>(2 * c_.H),
                .q = s.qkvoif,
                .k = s.qkvoif + c_.qk(),
                .v = s.qkvoif + 2 * c_.qk(),
                .g = s.gates + c_.H,
                .i = s.gates,
                .S = states.data(first),
                .z = c_.normaliser ? states.array(first + 1) : nullptr,
                .o = h.f32},
               stream);
  kernels_.head_norm_gate({.rows = seqs.rows,
                           .H = static_cast<int>(c_.H),
                           .DV = static_cast<int>(c_.DV),
                           .eps = c_.norm_eps,
                           .o_stride = stride,
                           .h = h.f32,
                           .o = s.qkvoif + 2 * c_.qk() + c_.v(),
                           .w = block.head_norm.data(),
                           .y = h.f32,
                           .y_bf16 = h.bf16},
                          stream);
}

// s.gates: logsigmoid(cap tanh(x / cap)) of both gates.
void Xlstm::sigmoid_gates(int rows, const Scratch& s, Stream& stream) const {
  const int width = static_cast<int>(2 * c_.H);
  const auto apply = [&](Activation f, int x_stride, const float* x) {
    kernels_.activation({.rows = rows,
                         .width = width,
                         .f = f,
                         .scale = 1,
                         .floor = -INFINITY,
                         .x_stride = x_stride,
                         .y_stride = width,
                         .x = x,
                         .y = s.gates},
                        stream);
  };
  apply(Activation::kIdentity, static_cast<int>(c_.projected()), s.qkvoif + 2 * (c_.qk() + c_.v()));
  if (c_.gate_soft_cap > 0) {
    kernels_.soft_cap({.count = int64_t{rows} * width, .cap = c_.gate_soft_cap, .x = s.gates},
                      stream);
  }
  apply(Activation::kLogSigmoid, width, s.gates);
}

}  // namespace

std::unique_ptr<const Model> load_xlstm(Checkpoint& checkpoint, Backend& backend,
                                        const LoadOptions& options,
                                        const Checkpoint::Progress& progress) {
  return std::make_unique<Xlstm>(checkpoint, backend, options, progress);
}

}  // namespace recurve
