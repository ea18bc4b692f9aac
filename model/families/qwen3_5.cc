// Qwen3.5 and Qwen3.6 without experts, of text alone: blocks of a gated delta rule
// (kernels/ops/delta_rule.h) and, every fourth one, of attention over all of a session, each with a
// gated feed-forward layer. Source: transformers' modeling_qwen3_5.py.
#include <fmt/format.h>

#include <algorithm>

#include "model/families/qwen3_5_config.h"
#include "model/layers/decay.h"
#include "model/layers/gated_ffn.h"
#include "model/layers/head.h"
#include "model/layers/required_ops.h"
#include "model/load_model.h"
#include "model/special_ids.h"

namespace recurve {
namespace qwen3_5 {
namespace {

constexpr const char* kName = "qwen3_5";

struct Block {
  bool attends;
  DeltaMixerWeights delta;
  AttentionWeights attention;
  GatedFfn ffn;

  Residual::Reader reader() const { return attends ? attention.reader() : delta.reader(); }
};

DeltaMixerWeights load_delta(const DeltaMixerConfig& c, Checkpoint& checkpoint, Backend& backend,
                             const std::string& prefix, const WeightFormats& formats) {
  const std::string a = prefix + "linear_attn.";
  DeltaMixerWeights w;
  w.norm =
      VectorWeights::load_unit_offset(backend, checkpoint, prefix + "input_layernorm.weight", c.D);
  w.projection = LinearWeights::load(backend, checkpoint,
                                     {{a + "in_proj_qkv.weight", c.mixed()},
                                      {a + "in_proj_z.weight", c.out()},
                                      {a + "in_proj_b.weight", c.H},
                                      {a + "in_proj_a.weight", c.H}},
                                     c.D, formats.linear);
  w.conv = VectorWeights::load(backend, checkpoint, a + "conv1d.weight",
                               {{c.mixed(), 1, c.width}, {c.mixed(), c.width}});
  w.A = load_decay(backend, checkpoint, a + "A_log", {c.H});
  w.dt_bias = VectorWeights::load(backend, checkpoint, a + "dt_bias", {{c.H}});
  w.out_norm = VectorWeights::load(backend, checkpoint, a + "norm.weight", {{c.DV}});
  w.out = LinearWeights::load(backend, checkpoint, {{a + "out_proj.weight", c.D}}, c.out(),
                              formats.linear);
  return w;
}

Block load_block(const Config& c, Checkpoint& checkpoint, Backend& backend,
                 const std::string& prefix, bool attends, const WeightFormats& formats) {
  Block block{.attends = attends, .delta = {}, .attention = {}, .ffn = {}};
  if (attends) {
    block.attention =
        load_attention(c.attention, checkpoint, backend, prefix + "self_attn.",
                       VectorWeights::load_unit_offset(backend, checkpoint,
                                                       prefix + "input_layernorm.weight", c.D),
                       formats);
  } else {
    block.delta = load_delta(c.delta, checkpoint, backend, prefix, formats);
  }
  const std::string mlp = prefix + "mlp.";
  block.ffn = {
      .norm = VectorWeights::load_unit_offset(backend, checkpoint,
                                              prefix + "post_attention_layernorm.weight", c.D),
      .gate_up = LinearWeights::load(
          backend, checkpoint, {{mlp + "gate_proj.weight", c.F}, {mlp + "up_proj.weight", c.F}},
          c.D, formats.linear),
      .down = LinearWeights::load(backend, checkpoint, {{mlp + "down_proj.weight", c.D}}, c.F,
                                  formats.linear)};
  return block;
}

class Qwen35 final : public Model {
 public:
  Qwen35(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
         const Checkpoint::Progress& progress);

  const ModelInfo& info() const override { return info_; }
  StateLayout state_layout() const override;
  size_t arena_bytes(const StepLimits& limits) const override;
  void forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
               float* logits) const override;

 private:
  std::vector<int64_t> widths() const;  // of scratch rows: a mixer's, then the feed-forward's
  void fill_info(const Checkpoint& checkpoint, int64_t skipped);

  Config c_;
  const Kernels& kernels_;
  TokenWeights tokens_;
  std::vector<Block> blocks_;
  VectorWeights frequency_;  // (rotary / 2)
  ModelInfo info_;
};

Qwen35::Qwen35(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
               const Checkpoint::Progress& progress)
    : c_(read_config(checkpoint)), kernels_(backend.kernels()) {
  if (options.chunk > 0) c_.delta.chunk = options.chunk;
  c_.delta.state = options.state;
  c_.attention.kv = options.kv;
  check_delta_mixer(c_.delta, backend, kName);
  check_attention(c_.attention, backend, kName);
  // What a picture or a further token is predicted with.
  const int64_t skipped = checkpoint.skip({"model.visual.", "mtp."});
  const std::string prefix =
      checkpoint.detect_prefix({"model.language_model.", "model.", ""}, "norm.weight");
  tokens_ =
      load_token_weights(backend, checkpoint, prefix, "", c_.vocab, c_.D, c_.tied, options.weights);
  tokens_.norm = VectorWeights::load_unit_offset(backend, checkpoint, prefix + "norm.weight", c_.D);
  for (int64_t b = 0; b < c_.blocks(); ++b) {
    blocks_.push_back(load_block(c_, checkpoint, backend, fmt::format("{}layers.{}.", prefix, b),
                                 c_.attends[static_cast<size_t>(b)], options.weights));
  }
  frequency_ = c_.attention.rotary.frequencies(backend);
  checkpoint.finish(progress);
  fill_info(checkpoint, skipped);
}

void Qwen35::fill_info(const Checkpoint& checkpoint, int64_t skipped) {
  WeightTally tally;
  tally.add(tokens_);
  for (const Block& block : blocks_) {
    if (block.attends) {
      add_to(tally, block.attention);
    } else {
      add_to(tally, block.delta);
    }
    add_to(tally, block.ffn);
  }
  info_.parameters = tally.parameters;
  info_.weight_bytes = tally.bytes;
  info_.family = kName;
  info_.description = fmt::format(
      "{} blocks, {} of them attention, width {}, {} heads of {} x {}, feed-forward {}{}",
      c_.blocks(), std::ranges::count(c_.attends, true), c_.D, c_.delta.H, c_.delta.DK, c_.delta.DV,
      c_.F,
      skipped == 0
          ? ""
          : fmt::format("; {} tensors for pictures and further tokens are not used", skipped));
  info_.head = tokens_.head_source;
  info_.vocab = c_.vocab;
  info_.chunk = c_.delta.chunk;
  info_.most_tokens = c_.most_tokens;
  const SpecialIds ids = read_special_ids(checkpoint, text_config(checkpoint));
  info_.bos = ids.bos;
  info_.eos = ids.eos;
  info_.force_bos = ids.force_bos.value_or(false);
}

// Two arrays a block, and after them how far the session has come.
StateLayout Qwen35::state_layout() const {
  StateLayout layout;
  for (int b = 0; b < static_cast<int>(c_.blocks()); ++b) {
    if (c_.attends[static_cast<size_t>(b)]) {
      add_arrays(c_.attention, b, layout);
    } else {
      add_arrays(c_.delta, b, layout);
    }
  }
  layout.arrays.push_back(
      {.name = "position", .dtype = DType::kI32, .shape = {1}, .values = StateValues::kPosition});
  return layout;
}

std::vector<int64_t> Qwen35::widths() const {
  const std::vector<int64_t> delta = DeltaMixerScratch::widths(c_.delta);
  std::vector<int64_t> widths = AttentionScratch::widths(c_.attention);
  widths.resize(std::max(widths.size(), delta.size()));
  for (size_t i = 0; i < delta.size(); ++i) widths[i] = std::max(widths[i], delta[i]);
  widths.push_back(c_.F);
  widths.push_back(1);  // positions
  return widths;
}

size_t Qwen35::arena_bytes(const StepLimits& limits) const {
  const auto bytes_for = [](int count, int64_t width) {
    return Arena::bytes_for(static_cast<size_t>(count) * static_cast<size_t>(width));
  };
  size_t bytes = Residual::bytes_for(kernels_, limits.rows, c_.D) + bytes_for(limits.logits, c_.D);
  for (const int64_t width : widths()) bytes += bytes_for(limits.rows, width);
  return bytes;
}

void Qwen35::forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
                     float* logits) const {
  const int rows = batch.seqs.rows;
  arena.reset();
  Residual x(kernels_, arena, rows, c_.D);
  std::vector<float*> a;
  for (const int64_t width : widths()) {
    a.push_back(arena.floats(static_cast<size_t>(rows) * static_cast<size_t>(width)));
  }
  static_assert(sizeof(float) == sizeof(int32_t));
  auto* const position = reinterpret_cast<int32_t*>(a.back());
  float* const hidden = a[a.size() - 2];
  float* const picked =
      arena.floats(static_cast<size_t>(batch.num_logits) * static_cast<size_t>(c_.D));
  const DeltaMixerScratch delta{a[0], a[1], a[2], a[3], a[4], hidden, c_.F};
  const AttentionScratch attending{a[0], a[1], a[2], a[3], position, frequency_.data()};
  const Head last{.norm = &tokens_.norm, .W = tokens_.head_matrix(), .eps = c_.eps, .soft_cap = 0};
  kernels_.embed({.rows = rows, .E = tokens_.embedding.matrix(), .token = batch.tokens, .x = x.x()},
                 stream);
  kernels_.positions({.seqs = batch.seqs,
                      .count = states.array<int32_t>(2 * blocks_.size()),
                      .position = position},
                     stream);
  for (size_t b = 0; b < blocks_.size(); ++b) {
    const Block& block = blocks_[b];
    const Residual::Reader ffn = block.ffn.reader();
    if (block.attends) {
      attention(c_.attention, block.attention, batch.seqs,
                {states.paged(2 * b), states.paged(2 * b + 1)}, attending, x, ffn, kernels_,
                stream);
    } else {
      delta_mixer(c_.delta, block.delta, batch.seqs, {states.data(2 * b), states.array(2 * b + 1)},
                  delta, x, ffn, kernels_, stream);
    }
    gated_ffn(block.ffn, c_.eps, x, reader_after(blocks_, b, last), hidden, kernels_, stream);
  }
  head(last, batch, x, picked, logits, kernels_, stream);
}

}  // namespace
}  // namespace qwen3_5

std::unique_ptr<const Model> load_qwen3_5(Checkpoint& checkpoint, Backend& backend,
                                          const LoadOptions& options,
                                          const Checkpoint::Progress& progress) {
  return std::make_unique<qwen3_5::Qwen35>(checkpoint, backend, options, progress);
}

}  // namespace recurve
