// Language models of recurrent cells: Elman, LSTM, GRU and sLSTM, in heads that see themselves
// only. No package has a public format for them, so this is the one of weights_tools:
//
//   cell             "elman", "lstm", "gru" (PyTorch's), "flash_gru" (the FlashRNN paper's),
//   "slstm" block            "plain": cells on top of each other, nothing between, as nn.LSTM
//   stacks them;
//                    "pre_norm": x += cell(norm(x)), x += SwiGLU(norm(x)), the FlashRNN paper's
//   norm, norm_eps   of "pre_norm": "layer_norm" or "rms_norm"
//   hidden_size, num_heads, num_hidden_layers, intermediate_size, embedding_size, vocab_size
//   use_bias, head_bias, norm_bias, tie_word_embeddings, slstm_n_min
//
//   embeddings.weight (V, E)           layers.L.weight_ih (gates D, in)  with bias_ih
//   lm_head.weight (V, D) with bias    layers.L.weight_hh (gates D, D / heads)  with bias_hh
//   norm.weight (D), and layers.L.{norm,ffn_norm}.weight, layers.L.ffn.{gate,up,down}_proj.weight
//
// The rows of weight_ih and weight_hh are gate, head, channel; gates in PyTorch's order: i, f, g, o
// (g is z in kernels/ops/rnn.h) and r, z, n.
#include <fmt/format.h>

#include "kernels/fusion.h"
#include "model/layers/head.h"
#include "model/layers/host_matrix.h"
#include "model/layers/required_ops.h"
#include "model/layers/token_weights.h"
#include "model/load_model.h"
#include "model/special_ids.h"
#include "model/weights/config_reader.h"
#include "model/weights/convert.h"

namespace recurve {
namespace {

// The grid of prompts. Rows of a cell follow one another, so it could be anything.
constexpr int kStepChunk = 64;

struct RnnConfig {
  RnnCell cell;
  std::string cell_name;
  int64_t D, E, H, layers, F, vocab;
  bool pre_norm, rms_norm, norm_bias, bias, head_bias, tied;
  float eps, n_min;
  int chunk;

  int64_t gates() const { return gates_of(cell); }
  int64_t DH() const { return D / H; }
};

constexpr std::pair<const char*, RnnCell> kCells[] = {{"elman", RnnCell::kElman},
                                                      {"lstm", RnnCell::kLstm},
                                                      {"gru", RnnCell::kGru},
                                                      {"flash_gru", RnnCell::kFlashGru},
                                                      {"slstm", RnnCell::kSlstm}};

void read_cell(ConfigReader& read, RnnConfig& c) {
  std::vector<std::string> names;
  for (const auto& [name, cell] : kCells) names.push_back(name);
  c.cell_name = read.string_one_of("cell", "", names);
  if (c.cell_name.empty()) read.fail("cell", joined(names, " or "), "no such key");
  for (const auto& [name, cell] : kCells) {
    if (c.cell_name == name) c.cell = cell;
  }
  c.n_min = static_cast<float>(read.optional_number("slstm_n_min", 0, 0, 1));
  c.H = read.optional_int("num_heads", 1, 1, 1 << 16);
  if (c.D % c.H != 0) {
    read.fail("num_heads", fmt::format("a divisor of hidden_size {}", c.D), std::to_string(c.H));
  }
}

void read_block(ConfigReader& read, RnnConfig& c) {
  c.pre_norm = read.string_one_of("block", "plain", {"plain", "pre_norm"}) == "pre_norm";
  c.E = read.optional_int("embedding_size", c.D, 1, 1 << 20);
  if (!c.pre_norm) return;
  if (c.E != c.D) {
    read.fail("embedding_size", fmt::format("hidden_size {} with this block", c.D),
              std::to_string(c.E));
  }
  c.F = read.required_int("intermediate_size", 1, 1 << 20);
  c.rms_norm = read.string_one_of("norm", "layer_norm", {"layer_norm", "rms_norm"}) == "rms_norm";
  c.norm_bias = read.boolean("norm_bias", false);
  if (c.rms_norm && c.norm_bias) read.fail("norm_bias", "false with rms_norm", "true");
  c.eps = static_cast<float>(read.optional_number("norm_eps", 1e-5, 0, 1));
  read.string_one_of("hidden_act", "silu", {"silu", "swish"});
}

RnnConfig read_rnn_config(const Checkpoint& checkpoint) {
  ConfigReader read(checkpoint.config(), checkpoint.config_file());
  RnnConfig c{};
  c.D = read.required_int("hidden_size", 1, 1 << 20);
  c.layers = read.required_int("num_hidden_layers", 1, 4096);
  c.vocab = read.required_int("vocab_size", 1, 1 << 24);
  c.bias = read.boolean("use_bias", true);
  c.head_bias = read.boolean("head_bias", false);
  c.tied = read.boolean("tie_word_embeddings", false);
  c.chunk = kStepChunk;
  read_cell(read, c);
  read_block(read, c);
  if (c.tied && c.E != c.D) {
    read.fail("tie_word_embeddings", "false where embedding_size differs from hidden_size", "true");
  }
  read.finish();
  return c;
}

struct Norm {
  VectorWeights weight;  // (D)
  VectorWeights bias;    // (D) or empty
};

struct Layer {
  LinearWeights input;    // (gates D, E or D), with bias
  HostMatrix R;           // (H gates DH, DH)
  VectorWeights bias;     // (gates, H, DH), or empty
  Norm norm, ffn_norm;    // pre_norm
  LinearWeights gate_up;  // (2 F, D), pre_norm
  LinearWeights down;     // (D, F), pre_norm
};

class Rnn final : public Model {
 public:
  Rnn(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
      const Checkpoint::Progress& progress);

  const ModelInfo& info() const override { return info_; }
  StateLayout state_layout() const override;
  size_t arena_bytes(const StepLimits& limits) const override;
  void forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
               float* logits) const override;

 private:
  // Activations of one step.
  struct Scratch {
    float* x;       // (rows, E or D): the residual stream, or what goes into the next cell
    float* y;       // (rows, D)
    float* gates;   // (rows, gates D)
    float* hidden;  // (rows, F)
    float* picked;  // (logits, D)
    float* normed;  // (logits, D)
  };
  std::vector<int64_t> widths() const {
    return {std::max(c_.E, c_.D), c_.D, c_.gates() * c_.D, c_.F};
  }
  Layer load_layer(Checkpoint& checkpoint, Backend& backend, const std::string& prefix,
                   int64_t inputs, const WeightFormats& formats) const;
  Norm load_norm(Checkpoint& checkpoint, Backend& backend, const std::string& prefix) const;
  void fill_info(const Checkpoint& checkpoint);
  std::vector<const char*> state_names() const;

  Activations activations_for(const LinearWeights& next, float* memory) const;
  void normalise(const Norm& norm, int rows, const float* x, float* sum, const Activations& y,
                 Stream& stream) const;
  void cell(size_t index, const Ragged& seqs, const StatePool& states, const Activations& x,
            float* gates, float* y, Stream& stream) const;
  void pre_norm_block(size_t index, const Ragged& seqs, const StatePool& states,
                      const Scratch& scratch, Stream& stream) const;
  void head(const StepBatch& batch, const Scratch& scratch, float* logits, Stream& stream) const;

  RnnConfig c_;
  const Kernels& kernels_;
  LinearWeights embedding_;  // (V, E)
  std::vector<Layer> layers_;
  Norm out_norm_;            // pre_norm
  LinearWeights lm_head_;    // (V, D); empty where tied
  VectorWeights head_bias_;  // (V), where tied and there is one
  ModelInfo info_;
};

Rnn::Rnn(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
         const Checkpoint::Progress& progress)
    : c_(read_rnn_config(checkpoint)), kernels_(backend.kernels()) {
  require_ops(backend, "rnn", {"embed", "gather_rows", "linear", "rnn"});
  if (c_.pre_norm) {
    require_ops(backend, "rnn", {c_.rms_norm ? "rms_norm" : "layer_norm", "add"});
  }
  if (options.chunk > 0) c_.chunk = options.chunk;
  embedding_ = LinearWeights::load(backend, checkpoint, {{"embeddings.weight", c_.vocab}}, c_.E,
                                   options.weights.tokens);
  for (int64_t l = 0; l < c_.layers; ++l) {
    layers_.push_back(load_layer(checkpoint, backend, fmt::format("layers.{}.", l),
                                 l == 0 ? c_.E : c_.D, options.weights));
  }
  if (c_.pre_norm) out_norm_ = load_norm(checkpoint, backend, "norm.");
  const std::string bias = c_.head_bias ? "lm_head.bias" : "";
  const HeadSource head = find_head(checkpoint, "embeddings.weight", {"lm_head.weight"}, c_.tied);
  info_.head = head.words;
  c_.tied = head.is_embedding;
  if (c_.tied) {
    if (c_.head_bias) head_bias_ = VectorWeights::load(backend, checkpoint, bias, {{c_.vocab}});
  } else {
    lm_head_ = LinearWeights::load(backend, checkpoint, {{"lm_head.weight", c_.vocab, bias}}, c_.D,
                                   options.weights.tokens);
  }
  checkpoint.finish(progress);
  fill_info(checkpoint);
}

Layer Rnn::load_layer(Checkpoint& checkpoint, Backend& backend, const std::string& prefix,
                      int64_t inputs, const WeightFormats& formats) const {
  const int64_t G = c_.gates(), H = c_.H, DH = c_.DH();
  const auto linear = [&](const std::vector<LinearWeights::Part>& parts, int64_t K) {
    return LinearWeights::load(backend, checkpoint, parts, K, formats.linear);
  };
  Layer layer;
  const std::string bias_name = c_.bias ? prefix + "bias_ih" : "";
  layer.input = linear({{prefix + "weight_ih", G * c_.D, bias_name}}, inputs);
  // From (gate, head) to (head, gate).
  const std::vector<float> from =
      host_values(checkpoint.take_any({prefix + "weight_hh"}, {{G * c_.D, DH}, {G, H, DH, DH}}));
  std::vector<float> R;
  for (int64_t part = 0; part < H * G && !from.empty(); ++part) {
    const auto begin = from.begin() + (part % G * H + part / G) * DH * DH;
    R.insert(R.end(), begin, begin + DH * DH);
  }
  layer.R = HostMatrix(backend, R, DH, formats.others);
  if (c_.bias) {
    layer.bias = VectorWeights::load(backend, checkpoint, prefix + "bias_hh", {{G * c_.D}});
  }
  if (!c_.pre_norm) return layer;
  layer.norm = load_norm(checkpoint, backend, prefix + "norm.");
  layer.ffn_norm = load_norm(checkpoint, backend, prefix + "ffn_norm.");
  const std::string f = prefix + "ffn.";
  layer.gate_up = linear({{f + "gate_proj.weight", c_.F}, {f + "up_proj.weight", c_.F}}, c_.D);
  layer.down = linear({{f + "down_proj.weight", c_.D}}, c_.F);
  return layer;
}

Norm Rnn::load_norm(Checkpoint& checkpoint, Backend& backend, const std::string& prefix) const {
  Norm norm;
  norm.weight = VectorWeights::load(backend, checkpoint, prefix + "weight", {{c_.D}});
  if (c_.norm_bias) {
    norm.bias = VectorWeights::load(backend, checkpoint, prefix + "bias", {{c_.D}});
  }
  return norm;
}

void Rnn::fill_info(const Checkpoint& checkpoint) {
  WeightTally tally;
  tally.add(embedding_);
  tally.add(lm_head_);
  for (const VectorWeights* w : {&head_bias_, &out_norm_.weight, &out_norm_.bias}) tally.add(*w);
  for (const Layer& l : layers_) {
    for (const LinearWeights* w : {&l.input, &l.gate_up, &l.down}) tally.add(*w);
    for (const VectorWeights* w :
         {&l.bias, &l.norm.weight, &l.norm.bias, &l.ffn_norm.weight, &l.ffn_norm.bias}) {
      tally.add(*w);
    }
    tally.parameters += l.R.count();
    tally.bytes += static_cast<int64_t>(l.R.bytes());
  }
  info_.parameters = tally.parameters;
  info_.weight_bytes = tally.bytes;
  info_.family = "rnn";
  info_.description = fmt::format("{} {} layers, width {}, {} {} of {}", c_.layers, c_.cell_name,
                                  c_.D, c_.H, c_.H == 1 ? "head" : "heads", c_.DH());
  info_.vocab = c_.vocab;
  info_.width = c_.D;
  info_.chunk = c_.chunk;
  set_special_ids(read_special_ids(checkpoint), &info_);
}

std::vector<const char*> Rnn::state_names() const {
  if (c_.cell == RnnCell::kLstm) return {"h", "c"};
  if (c_.cell == RnnCell::kSlstm) return {"h", "c", "n", "m"};
  return {"h"};
}

StateLayout Rnn::state_layout() const {
  StateLayout layout;
  for (int l = 0; l < static_cast<int>(c_.layers); ++l) {
    for (const char* name : state_names()) {
      layout.arrays.push_back({.name = name, .layer = l, .shape = {c_.H, c_.DH()}});
    }
  }
  return layout;
}

size_t Rnn::arena_bytes(const StepLimits& limits) const {
  const auto bytes_for = [](int count, int64_t width) {
    return Arena::bytes_for(static_cast<size_t>(count) * static_cast<size_t>(width));
  };
  size_t bytes = 2 * bytes_for(limits.logits, c_.D);
  for (const int64_t width : widths()) bytes += bytes_for(limits.rows, width);
  return bytes;
}

void Rnn::forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
                  float* logits) const {
  const int rows = batch.seqs.rows;
  arena.reset();
  std::vector<float*> a;
  for (const int64_t width : widths()) {
    a.push_back(arena.floats(static_cast<size_t>(rows) * static_cast<size_t>(width)));
  }
  const size_t picked = static_cast<size_t>(batch.num_logits) * static_cast<size_t>(c_.D);
  Scratch s{a[0], a[1], a[2], a[3], arena.floats(picked), arena.floats(picked)};
  kernels_.embed({.rows = rows, .E = embedding_.matrix(), .token = batch.tokens, .x = s.x}, stream);
  for (size_t l = 0; l < layers_.size(); ++l) {
    if (c_.pre_norm) {
      pre_norm_block(l, batch.seqs, states, s, stream);
    } else {
      cell(l, batch.seqs, states, {s.x, nullptr}, s.gates, s.y, stream);
      std::swap(s.x, s.y);
    }
  }
  head(batch, s, logits, stream);
}

void Rnn::pre_norm_block(size_t index, const Ragged& seqs, const StatePool& states,
                         const Scratch& s, Stream& stream) const {
  const Layer& layer = layers_[index];
  const int rows = seqs.rows;
  const Activations x = activations_for(layer.input, s.y),
                    ffn_x = activations_for(layer.gate_up, s.gates);
  normalise(layer.norm, rows, s.x, nullptr, x, stream);
  cell(index, seqs, states, x, s.gates, s.y, stream);
  normalise(layer.ffn_norm, rows, s.y, s.x, ffn_x, stream);
  LinearArgs up{.rows = rows,
                .W = layer.gate_up.matrix(),
                .x = ffn_x.f32,
                .swiglu = true,
                .x_bf16 = ffn_x.bf16};
  LinearArgs down{.rows = rows, .W = layer.down.matrix(), .residual = s.x, .y = s.x};
  join(kernels_, up, down, s.hidden);
  kernels_.linear(up, stream);
  kernels_.linear(down, stream);
}

// Only the layer norm leaves its rows in bf16.
Activations Rnn::activations_for(const LinearWeights& next, float* memory) const {
  if (c_.rms_norm) return {.f32 = memory};
  return rows_for(kernels_, next.matrix(), memory, memory, next.matrix().K);
}

// The norm of x, or where there is a sum, of sum += x.
void Rnn::normalise(const Norm& norm, int rows, const float* x, float* sum, const Activations& y,
                    Stream& stream) const {
  const int D = static_cast<int>(c_.D);
  if (c_.rms_norm) {
    if (sum != nullptr) {
      kernels_.add({.count = int64_t{rows} * D, .a = sum, .b = x, .y = sum}, stream);
      x = sum;
    }
    kernels_.rms_norm(
        {.rows = rows, .D = D, .eps = c_.eps, .x = x, .w = norm.weight.data(), .y = y.f32}, stream);
    return;
  }
  kernels_.layer_norm({.rows = rows,
                       .D = D,
                       .G = 1,
                       .eps = c_.eps,
                       .x = x,
                       .w = norm.weight.data(),
                       .b = norm.bias.data(),
                       .residual = nullptr,
                       .y = y.f32,
                       .sum = sum,
                       .y_bf16 = y.bf16},
                      stream);
}

// y may be x: it is written when x has been read.
void Rnn::cell(size_t index, const Ragged& seqs, const StatePool& states, const Activations& x,
               float* gates, float* y, Stream& stream) const {
  const Layer& layer = layers_[index];
  kernels_.linear({.rows = seqs.rows,
                   .W = layer.input.matrix(),
                   .bias = layer.input.bias(),
                   .x = x.f32,
                   .y = gates,
                   .x_bf16 = x.bf16},
                  stream);
  const size_t arrays = state_names().size(), first = arrays * index;
  kernels_.rnn({.seqs = seqs,
                .cell = c_.cell,
                .H = static_cast<int>(c_.H),
                .DH = static_cast<int>(c_.DH()),
                .n_min = c_.n_min,
                .x_stride = static_cast<int>(c_.gates() * c_.D),
                .x = gates,
                .R = layer.R.matrix(),
                .b = layer.bias.data(),
                .h = states.array(first),
                .c = arrays > 1 ? states.array(first + 1) : nullptr,
                .n = arrays > 2 ? states.array(first + 2) : nullptr,
                .m = arrays > 2 ? states.array(first + 3) : nullptr,
                .y = y},
               stream);
}

void Rnn::head(const StepBatch& batch, const Scratch& s, float* logits, Stream& stream) const {
  if (batch.num_hidden > 0) {
    copy_hidden(batch, c_.D, s.x, kernels_, stream);
    if (c_.pre_norm) {
      normalise(out_norm_, batch.num_hidden, batch.hidden, nullptr, {batch.hidden, nullptr},
                stream);
    }
  }
  const int count = batch.num_logits;
  if (count == 0) return;
  const float* rows = rows_with_logits(batch, c_.D, s.x, s.picked, kernels_, stream);
  const LinearWeights& W = c_.tied ? embedding_ : lm_head_;
  LinearArgs args{.rows = count,
                  .W = W.matrix(),
                  .bias = c_.tied ? head_bias_.data() : lm_head_.bias(),
                  .x = rows,
                  .y = logits};
  if (c_.pre_norm) {
    const Activations normed = activations_for(W, s.normed);
    normalise(out_norm_, count, rows, nullptr, normed, stream);
    args.x = normed.f32;
    args.x_bf16 = normed.bf16;
  }
  kernels_.linear(args, stream);
}

}  // namespace

std::unique_ptr<const Model> load_rnn(Checkpoint& checkpoint, Backend& backend,
                                      const LoadOptions& options,
                                      const Checkpoint::Progress& progress) {
  return std::make_unique<Rnn>(checkpoint, backend, options, progress);
}

}  // namespace recurve
