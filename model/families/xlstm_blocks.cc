// The xLSTM of the paper (Beck et al. 2024), as the research code trains it: mLSTM and sLSTM blocks
// in any order, with causal convolutions and block-diagonal projections. Not xLSTM-large, which is
// xlstm.cc. Source: NX-AI/xlstm xlstm/xlstm_lm_model.py, blocks/{mlstm,slstm}, components.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "model/layers/host_matrix.h"
#include "model/layers/required_ops.h"
#include "model/layers/token_weights.h"
#include "model/registry.h"
#include "model/special_ids.h"
#include "model/weights/config_reader.h"
#include "model/weights/convert.h"

namespace recurve {
namespace {

// The package has no keys for these.
constexpr float kNormEps = 1e-5f;
constexpr float kCellEps = 1e-6f;
// The grid of prompts: the research code has no chunks.
constexpr int kChunk = 64;

struct Config {
  int64_t D, blocks, vocab;
  std::vector<bool> slstm;  // of each block
  int chunk;
  bool tied, out_norm;
  // mLSTM blocks: inner width, heads, size of a projection's blocks, width of the convolution.
  int64_t inner, H, block, width;
  // sLSTM blocks: heads, width of the convolution (0: none), feed-forward width (0: none).
  int64_t slstm_H, slstm_width, F;
  Activation ffn_activation;
  bool transposed_R;  // the layout of the "cuda" backend; otherwise that of "vanilla"

  bool any(bool is_slstm) const {
    return std::find(slstm.begin(), slstm.end(), is_slstm) != slstm.end();
  }
};

// A mapping inside the config; empty if it is not there.
const nlohmann::json& section(ConfigReader& read, const nlohmann::json& config, const char* key) {
  static const nlohmann::json kNone = nlohmann::json::object();
  read.ignore({key});
  return read.has(key) ? config[key] : kNone;
}

// utils.py, UpProjConfigMixin.
int64_t read_up_size(ConfigReader& read, int64_t D, double default_factor) {
  const double factor = read.optional_number("proj_factor", default_factor, 1e-3, 64);
  const int64_t multiple = read.optional_int("round_proj_up_to_multiple_of", 64, 1, 1 << 16);
  read.must_be("round_proj_up_dim_up", true);
  const double size = factor * static_cast<double>(D) / static_cast<double>(multiple);
  return static_cast<int64_t>(std::ceil(size)) * multiple;
}

void read_mlstm(const nlohmann::json& block, const std::string& file, Config& c) {
  ConfigReader read_block(block, file + ": mlstm_block");
  const nlohmann::json& mlstm = section(read_block, block, "mlstm");
  read_block.ignore({"_num_blocks", "_block_idx"});
  read_block.finish();
  ConfigReader read(mlstm, file + ": mlstm_block.mlstm");
  c.inner = read_up_size(read, c.D, 2.0);
  c.H = read.optional_int("num_heads", 4, 1, 4096);
  c.block = read.optional_int("qkv_proj_blocksize", 4, 1, 1 << 16);
  c.width = read.optional_int("conv1d_kernel_size", 4, 0, 256);
  if (c.width == 1) read.fail("conv1d_kernel_size", "0 or at least 2", "1");
  if (c.inner % c.H != 0) {
    read.fail("num_heads", fmt::format("a divisor of the inner width {}", c.inner),
              std::to_string(c.H));
  }
  if (c.inner % c.block != 0) {
    read.fail("qkv_proj_blocksize", fmt::format("a divisor of the inner width {}", c.inner),
              std::to_string(c.block));
  }
  read.must_be("embedding_dim", c.D);
  read.must_be("bias", false);
  read.must_be("memory_backend", "dense");
  read.must_be("gate_mode", "sigmoid");
  read.ignore({"dropout", "context_length", "_num_blocks", "_inner_embedding_dim", "_proj_up_dim"});
  read.finish();
}

Activation read_activation(ConfigReader& read) {
  const std::string name =
      read.string_one_of("act_fn", "gelu", {"gelu", "relu", "sigmoid", "swish"});
  return name == "gelu"      ? Activation::kGelu
         : name == "relu"    ? Activation::kRelu
         : name == "sigmoid" ? Activation::kSigmoid
                             : Activation::kSilu;
}

void read_slstm(const nlohmann::json& block, const std::string& file, Config& c) {
  ConfigReader read_block(block, file + ": slstm_block");
  const nlohmann::json& slstm = section(read_block, block, "slstm");
  const bool has_ffn = read_block.has("feedforward");
  const nlohmann::json& ffn = section(read_block, block, "feedforward");
  read_block.ignore({"_num_blocks", "_block_idx"});
  read_block.finish();
  if (has_ffn) {
    ConfigReader read(ffn, file + ": slstm_block.feedforward");
    c.F = read_up_size(read, c.D, 1.3);
    c.ffn_activation = read_activation(read);
    read.must_be("ff_type", "ffn_gated");
    read.must_be("bias", false);
    read.must_be("embedding_dim", c.D);
    read.ignore({"dropout", "_num_blocks", "_proj_up_dim"});
    read.finish();
  }
  ConfigReader read(slstm, file + ": slstm_block.slstm");
  c.slstm_H = read.optional_int("num_heads", 4, 1, 4096);
  c.slstm_width = read.optional_int("conv1d_kernel_size", 4, 0, 256);
  if (c.slstm_width == 1) read.fail("conv1d_kernel_size", "0 or at least 2", "1");
  c.transposed_R = read.string_one_of("backend", "cuda", {"cuda", "vanilla"}) == "cuda";
  if (c.D % c.slstm_H != 0) {
    read.fail("num_heads", fmt::format("a divisor of the width {}", c.D),
              std::to_string(c.slstm_H));
  }
  for (const char* key : {"embedding_dim", "hidden_size"}) read.must_be(key, c.D);
  read.must_be("function", "slstm");
  read.must_be("group_norm_weight", true);
  read.must_be("forward_clipval", nullptr);
  read.must_be("initial_val", 0.0);
  read.must_be("num_gates", 4);
  read.must_be("num_states", 4);
  // Training, types of storage and shapes inside the package's kernels.
  read.ignore({"bias_init", "recurrent_weight_init", "gradient_recurrent_cut",
               "gradient_recurrent_clipval", "batch_size", "input_shape", "internal_input_shape",
               "output_shape", "constants", "dtype_b", "dtype_r", "dtype_w", "dtype_g", "dtype_s",
               "dtype_a", "enable_automatic_mixed_precision", "dropout", "_block_idx",
               "_num_blocks"});
  read.finish();
}

std::vector<bool> read_block_map(ConfigReader& read, const nlohmann::json& config, int64_t blocks) {
  read.ignore({"slstm_at"});
  std::vector<bool> map(static_cast<size_t>(blocks));
  const nlohmann::json at = read.has("slstm_at") ? config["slstm_at"] : nlohmann::json::array();
  if (at == "all" || !read.has("mlstm_block")) return std::vector<bool>(map.size(), true);
  if (!at.is_array()) read.fail("slstm_at", "a list of blocks or \"all\"", at.dump());
  for (const nlohmann::json& index : at) {
    const bool fits =
        index.is_number_integer() && index.get<int64_t>() >= 0 && index.get<int64_t>() < blocks;
    if (!fits) {
      read.fail("slstm_at", fmt::format("numbers of blocks below {}", blocks), index.dump());
    }
    map[index.get<size_t>()] = true;
  }
  return map;
}

Config read_config(const Checkpoint& checkpoint) {
  const nlohmann::json& config = checkpoint.config();
  ConfigReader read(config, checkpoint.config_file());
  Config c{};
  c.D = read.required_int({"embedding_dim", "hidden_size"}, 1, 1 << 20);
  c.blocks = read.required_int({"num_blocks", "num_hidden_layers"}, 1, 4096);
  c.vocab = read.required_int("vocab_size", 1, 1 << 24);
  c.tied = read.boolean({"tie_weights", "tie_word_embeddings"}, false);
  c.out_norm = read.boolean("add_post_blocks_norm", true);
  c.chunk = kChunk;
  c.slstm = read_block_map(read, config, c.blocks);
  if (c.any(false)) read_mlstm(section(read, config, "mlstm_block"), checkpoint.config_file(), c);
  if (c.any(true)) read_slstm(section(read, config, "slstm_block"), checkpoint.config_file(), c);
  read.must_be("bias", false);
  read.ignore({"mlstm_block", "slstm_block", "context_length", "dropout", "_block_map",
               "weight_decay_on_embedding", "add_embedding_dropout"});
  read.finish();
  return c;
}

struct MlstmWeights {
  LinearWeights up;         // (2 inner, D): x, then z
  VectorWeights conv;       // (inner, width), empty: no convolution
  VectorWeights conv_bias;  // (inner)
  HostMatrix q, k, v;       // (inner, block): block-diagonal
  LinearWeights gates;      // (2 H, 3 inner): i, then f, of q, k, v; with bias
  VectorWeights head_norm;  // (inner)
  VectorWeights skip;       // (inner)
  LinearWeights down;       // (D, inner)
};

struct SlstmWeights {
  VectorWeights conv;       // (D, width), empty: no convolution
  VectorWeights conv_bias;  // (D)
  HostMatrix i, f, z, o;    // (D, DH): a matrix a head
  HostMatrix R;             // (H 4 DH, DH)
  VectorWeights bias;       // (4, H, DH)
  VectorWeights head_norm;  // (D)
  VectorWeights ffn_norm;   // (D)
  LinearWeights ffn_up;     // (2 F, D): gate, then up
  LinearWeights ffn_down;   // (D, F)
};

// Of the two kinds of weights one is there.
struct Block {
  VectorWeights norm;  // (D)
  MlstmWeights mlstm;
  SlstmWeights slstm;
  size_t first_state;  // place of its arrays in the layout
};

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

  Block load_block(Checkpoint& checkpoint, Backend& backend, const std::string& prefix,
                   bool is_slstm, DType dtype) const;
  MlstmWeights load_mlstm(Checkpoint& checkpoint, Backend& backend, const std::string& prefix,
                          DType dtype) const;
  SlstmWeights load_slstm(Checkpoint& checkpoint, Backend& backend, const std::string& prefix,
                          DType dtype) const;
  void load_recurrence(Checkpoint& checkpoint, Backend& backend, const std::string& prefix,
                       DType dtype, SlstmWeights& weights) const;
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

// Norm weights are stored as what is added to one (components/ln.py, residual_weight).
VectorWeights load_norm(Checkpoint& checkpoint, Backend& backend, const std::string& name,
                        int64_t size) {
  std::vector<float> values = host_values(checkpoint.take(name, {size}));
  for (float& value : values) value += 1.0f;
  return VectorWeights::from(backend, values);
}

VectorWeights load_vector(Checkpoint& checkpoint, Backend& backend, const std::string& name,
                          const std::vector<Shape>& shapes) {
  return VectorWeights::load(backend, checkpoint, name, shapes);
}

// (H, N, K), one matrix a head.
HostMatrix load_headwise(Checkpoint& checkpoint, Backend& backend, const std::string& name,
                         int64_t H, int64_t N, DType dtype) {
  return HostMatrix(backend, host_values(checkpoint.take_any({name}, {{H, N, N}, {H * N, N}})), N,
                    dtype);
}

XlstmBlocks::XlstmBlocks(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
                         const Checkpoint::Progress& progress)
    : c_(read_config(checkpoint)), kernels_(backend.kernels()) {
  require_ops(backend, "xlstm_blocks",
              {"embed", "gather_rows", "linear", "layer_norm", "causal_conv1d", "headwise_linear",
               "activation", "mlstm", "skip_gate", "rnn", "glu"});
  if (options.chunk > 0) c_.chunk = options.chunk;
  const std::string prefix =
      checkpoint.detect_prefix({"", "model.", "backbone."}, "token_embedding.weight");
  embedding_ = LinearWeights::load(
      backend, checkpoint, {{prefix + "token_embedding.weight", c_.vocab}}, c_.D, options.weights);
  const std::string stack = prefix + "xlstm_block_stack.";
  size_t first_state = 0;
  for (size_t b = 0; b < c_.slstm.size(); ++b) {
    blocks_.push_back(load_block(checkpoint, backend, fmt::format("{}blocks.{}.", stack, b),
                                 c_.slstm[b], options.weights));
    blocks_.back().first_state = first_state;
    const bool convolution = (c_.slstm[b] ? c_.slstm_width : c_.width) > 0;
    first_state += (c_.slstm[b] ? 4 : 3) + (convolution ? 1 : 0);
  }
  if (c_.out_norm) {
    out_norm_ = load_norm(checkpoint, backend, stack + "post_blocks_norm.weight", c_.D);
  }
  if (c_.tied) {
    checkpoint.allow_extra({prefix + "lm_head.weight"});
  } else {
    lm_head_ = LinearWeights::load(backend, checkpoint, {{prefix + "lm_head.weight", c_.vocab}},
                                   c_.D, options.weights);
  }
  checkpoint.finish(progress);
  fill_info(checkpoint);
}

Block XlstmBlocks::load_block(Checkpoint& checkpoint, Backend& backend, const std::string& prefix,
                              bool is_slstm, DType dtype) const {
  Block block{};
  block.norm = load_norm(checkpoint, backend, prefix + "xlstm_norm.weight", c_.D);
  if (!is_slstm) {
    block.mlstm = load_mlstm(checkpoint, backend, prefix + "xlstm.", dtype);
    return block;
  }
  block.slstm = load_slstm(checkpoint, backend, prefix + "xlstm.", dtype);
  if (c_.F > 0) {
    const std::string f = prefix + "ffn.";
    block.slstm.ffn_norm = load_norm(checkpoint, backend, prefix + "ffn_norm.weight", c_.D);
    block.slstm.ffn_up =
        LinearWeights::load(backend, checkpoint, {{f + "proj_up.weight", 2 * c_.F}}, c_.D, dtype);
    block.slstm.ffn_down =
        LinearWeights::load(backend, checkpoint, {{f + "proj_down.weight", c_.D}}, c_.F, dtype);
  }
  return block;
}

// The gates are exponents and the blocks of the projections a few values each: both stay in fp32,
// which costs next to nothing and makes most of what bf16 would lose.
MlstmWeights XlstmBlocks::load_mlstm(Checkpoint& checkpoint, Backend& backend,
                                     const std::string& prefix, DType dtype) const {
  const auto headwise = [&](const char* name) {
    return load_headwise(checkpoint, backend, prefix + name, c_.inner / c_.block, c_.block,
                         DType::kF32);
  };
  const std::string cell = prefix + "mlstm_cell.";
  MlstmWeights w;
  w.up = LinearWeights::load(backend, checkpoint, {{prefix + "proj_up.weight", 2 * c_.inner}}, c_.D,
                             dtype);
  if (c_.width > 0) {
    w.conv = load_vector(checkpoint, backend, prefix + "conv1d.conv.weight",
                         {{c_.inner, 1, c_.width}, {c_.inner, c_.width}});
    w.conv_bias = load_vector(checkpoint, backend, prefix + "conv1d.conv.bias", {{c_.inner}});
  }
  w.q = headwise("q_proj.weight");
  w.k = headwise("k_proj.weight");
  w.v = headwise("v_proj.weight");
  w.gates = LinearWeights::load(backend, checkpoint,
                                {{cell + "igate.weight", c_.H, cell + "igate.bias"},
                                 {cell + "fgate.weight", c_.H, cell + "fgate.bias"}},
                                3 * c_.inner, DType::kF32);
  w.head_norm = load_norm(checkpoint, backend, cell + "outnorm.weight", c_.inner);
  w.skip = load_vector(checkpoint, backend, prefix + "learnable_skip", {{c_.inner}});
  w.down = LinearWeights::load(backend, checkpoint, {{prefix + "proj_down.weight", c_.D}}, c_.inner,
                               dtype);
  return w;
}

// The research code feeds fgate into the cell's input gate and igate into its forget gate
// (blocks/slstm/layer.py, forward), so that is what the tensors of a trained model mean.
SlstmWeights XlstmBlocks::load_slstm(Checkpoint& checkpoint, Backend& backend,
                                     const std::string& prefix, DType dtype) const {
  const auto headwise = [&](const char* name) {
    return load_headwise(checkpoint, backend, prefix + name, c_.slstm_H, c_.D / c_.slstm_H, dtype);
  };
  SlstmWeights w;
  if (c_.slstm_width > 0) {
    w.conv = load_vector(checkpoint, backend, prefix + "conv1d.conv.weight",
                         {{c_.D, 1, c_.slstm_width}, {c_.D, c_.slstm_width}});
    w.conv_bias = load_vector(checkpoint, backend, prefix + "conv1d.conv.bias", {{c_.D}});
  }
  w.i = headwise("fgate.weight");
  w.f = headwise("igate.weight");
  w.z = headwise("zgate.weight");
  w.o = headwise("ogate.weight");
  load_recurrence(checkpoint, backend, prefix + "slstm_cell.", dtype, w);
  w.head_norm = load_norm(checkpoint, backend, prefix + "group_norm.weight", c_.D);
  return w;
}

// The kernel is (H, in, 4, out) with a bias (H, 4, DH) as the package's cuda backend keeps it, and
// (H, 4, out, in) with (4, H, DH) as its vanilla backend does.
void XlstmBlocks::load_recurrence(Checkpoint& checkpoint, Backend& backend,
                                  const std::string& prefix, DType dtype,
                                  SlstmWeights& weights) const {
  const int64_t H = c_.slstm_H, DH = c_.D / H;
  const Shape shape = c_.transposed_R ? Shape{H, DH, 4 * DH} : Shape{H, 4 * DH, DH};
  const Shape split = c_.transposed_R ? Shape{H, DH, 4, DH} : Shape{H, 4, DH, DH};
  std::vector<float> R =
      host_values(checkpoint.take_any({prefix + "_recurrent_kernel_"}, {shape, split}));
  std::vector<float> bias =
      host_values(checkpoint.take_any({prefix + "_bias_"}, {{4 * c_.D}, {H, 4, DH}, {4, H, DH}}));
  if (c_.transposed_R && !R.empty()) {
    const std::vector<float> from = R;
    for (int64_t at = 0; at < H * 4 * DH * DH; ++at) {
      const int64_t in = at % DH, row = at / DH % (4 * DH), head = at / DH / (4 * DH);
      R[static_cast<size_t>(at)] = from[static_cast<size_t>((head * DH + in) * 4 * DH + row)];
    }
  }
  if (c_.transposed_R && !bias.empty()) {
    const std::vector<float> from = bias;
    for (int64_t at = 0; at < 4 * c_.D; ++at) {
      const int64_t d = at % DH, head = at / DH % H, gate = at / c_.D;
      bias[static_cast<size_t>(at)] = from[static_cast<size_t>((head * 4 + gate) * DH + d)];
    }
  }
  weights.R = HostMatrix(backend, R, DH, dtype);
  weights.bias = VectorWeights::from(backend, bias);
}

void XlstmBlocks::fill_info(const Checkpoint& checkpoint) {
  WeightTally tally;
  tally.add(embedding_);
  tally.add(lm_head_);
  tally.add(out_norm_);
  for (const Block& b : blocks_) {
    const MlstmWeights& m = b.mlstm;
    const SlstmWeights& s = b.slstm;
    for (const LinearWeights* w : {&m.up, &m.gates, &m.down, &s.ffn_up, &s.ffn_down}) tally.add(*w);
    for (const VectorWeights* w : {&b.norm, &m.conv, &m.conv_bias, &m.head_norm, &m.skip, &s.conv,
                                   &s.conv_bias, &s.bias, &s.head_norm, &s.ffn_norm}) {
      tally.add(*w);
    }
    for (const HostMatrix* w : {&m.q, &m.k, &m.v, &s.i, &s.f, &s.z, &s.o, &s.R}) {
      tally.parameters += w->count();
      tally.bytes += static_cast<int64_t>(w->bytes());
    }
  }
  info_.parameters = tally.parameters;
  info_.weight_bytes = tally.bytes;
  info_.family = "xlstm_blocks";
  const auto slstm_blocks = std::count(c_.slstm.begin(), c_.slstm.end(), true);
  info_.description = fmt::format("{} mLSTM and {} sLSTM blocks, width {}",
                                  c_.blocks - slstm_blocks, slstm_blocks, c_.D);
  info_.vocab = c_.vocab;
  info_.chunk = c_.chunk;
  const SpecialIds ids = read_special_ids(checkpoint);
  info_.bos = ids.bos;
  info_.eos = ids.eos;
  info_.force_bos = ids.force_bos.value_or(false);
}

StateLayout XlstmBlocks::state_layout() const {
  StateLayout layout;
  for (int b = 0; b < static_cast<int>(c_.blocks); ++b) {
    const auto add = [&](const char* name, std::vector<int64_t> shape) {
      layout.arrays.push_back({.name = name, .layer = b, .shape = std::move(shape)});
    };
    if (c_.slstm[static_cast<size_t>(b)]) {
      for (const char* name : {"h", "c", "sn", "sm"}) {
        add(name, {c_.slstm_H, c_.D / c_.slstm_H});
      }
      if (c_.slstm_width > 0) add("conv", {c_.D, c_.slstm_width - 1});
    } else {
      const int64_t DH = c_.inner / c_.H;
      add("C", {c_.H, DH, DH});
      add("n", {c_.H, DH});
      add("m", {c_.H});
      if (c_.width > 0) add("conv", {c_.inner, c_.width - 1});
    }
  }
  return layout;
}

// Of the rows of Scratch, but for `picked`, in its order.
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
  const auto room = [](int count, int64_t width) {
    return Arena::room(static_cast<size_t>(count) * static_cast<size_t>(width));
  };
  size_t bytes = room(limits.logits, c_.D);
  for (const int64_t width : widths()) bytes += room(limits.rows, width);
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
  kernels_.linear({.rows = rows, .W = w.up.matrix(), .x = s.y, .y = s.up}, stream);
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
  const auto headwise = [&](const HostMatrix& W, const float* x, int x_stride, float* y) {
    kernels_.headwise_linear({.rows = rows,
                              .H = static_cast<int>(c_.inner / c_.block),
                              .W = W.matrix(),
                              .x_stride = x_stride,
                              .y_stride = 3 * inner,
                              .x = x,
                              .y = y},
                             stream);
  };
  headwise(w.q, c, c_stride, s.qkv);
  headwise(w.k, c, c_stride, s.qkv + inner);
  headwise(w.v, s.up, 2 * inner, s.qkv + 2 * inner);
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
  kernels_.linear({.rows = rows, .W = w.down.matrix(), .residual = s.x, .x = s.h, .y = s.x},
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
                  .C = states.array(block.first_state),
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
  kernels_.linear({.rows = rows, .W = w.ffn_up.matrix(), .x = s.y, .y = s.up}, stream);
  kernels_.glu({.rows = rows,
                .F = static_cast<int>(c_.F),
                .f = c_.ffn_activation,
                .gate_up = s.up,
                .y = s.h},
               stream);
  kernels_.linear({.rows = rows, .W = w.ffn_down.matrix(), .residual = s.x, .x = s.h, .y = s.x},
                  stream);
}

void XlstmBlocks::head(const StepBatch& batch, const Scratch& s, float* logits,
                       Stream& stream) const {
  const int count = batch.num_logits, D = static_cast<int>(c_.D);
  if (count == 0) return;
  kernels_.gather_rows({.count = count, .D = D, .x = s.x, .index = batch.logit_rows, .y = s.picked},
                       stream);
  if (c_.out_norm) norm(out_norm_, count, 1, c_.D, s.picked, nullptr, s.picked, stream);
  const Matrix& W = c_.tied ? embedding_.matrix() : lm_head_.matrix();
  kernels_.linear({.rows = count, .W = W, .x = s.picked, .y = logits}, stream);
}

}  // namespace

std::unique_ptr<const Model> load_xlstm_blocks(Checkpoint& checkpoint, Backend& backend,
                                               const LoadOptions& options,
                                               const Checkpoint::Progress& progress) {
  return std::make_unique<XlstmBlocks>(checkpoint, backend, options, progress);
}

}  // namespace recurve
