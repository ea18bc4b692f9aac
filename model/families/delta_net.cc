// DeltaNet and Gated DeltaNet as flash-linear-attention has them: a mixer whose state is a matrix a
// head, of which each token replaces the part along its key (kernels/ops/delta_rule.h), and a gated
// feed-forward layer. Source: fla layers/{delta_net,gated_deltanet}.py, modules/mlp.py.
#include <fmt/format.h>

#include "model/families/delta_net_block.h"
#include "model/layers/head.h"
#include "model/load_model.h"
#include "model/special_ids.h"

namespace recurve {
namespace delta_net {
namespace {

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
  std::vector<int64_t> widths() const;  // of scratch rows: the mixer's, then the feed-forward's
  size_t states_a_block() const { return c_.width > 0 ? 2 : 1; }
  void fill_info(const Checkpoint& checkpoint);

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
  check_delta_mixer(c_, backend, c_.type);
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

void DeltaNet::fill_info(const Checkpoint& checkpoint) {
  WeightTally tally;
  tally.add(tokens_);
  for (const Block& block : blocks_) {
    add_to(tally, block.mixer);
    add_to(tally, block.ffn);
  }
  info_.parameters = tally.parameters;
  info_.weight_bytes = tally.bytes;
  info_.family = c_.type;
  info_.description = fmt::format("{} blocks, width {}, {} heads of {} x {}, feed-forward {}",
                                  c_.blocks, c_.D, c_.H, c_.DK, c_.DV, c_.F);
  info_.head = tokens_.head_source;
  info_.vocab = c_.vocab;
  info_.width = c_.D;
  info_.chunk = c_.chunk;
  set_special_ids(read_special_ids(checkpoint), &info_);
}

StateLayout DeltaNet::state_layout() const {
  StateLayout layout;
  for (int b = 0; b < static_cast<int>(c_.blocks); ++b) add_arrays(c_, b, layout);
  return layout;
}

std::vector<int64_t> DeltaNet::widths() const {
  std::vector<int64_t> widths = DeltaMixerScratch::widths(c_);
  widths.push_back(c_.F);
  return widths;
}

size_t DeltaNet::arena_bytes(const StepLimits& limits) const {
  const auto bytes_for = [](int count, int64_t width) {
    return Arena::bytes_for(static_cast<size_t>(count) * static_cast<size_t>(width));
  };
  size_t bytes = Residual::bytes_for(kernels_, limits.rows, c_.D) + bytes_for(limits.logits, c_.D);
  for (const int64_t width : widths()) bytes += bytes_for(limits.rows, width);
  return bytes;
}

void DeltaNet::forward(const StepBatch& batch, const StatePool& states, Arena& arena,
                       Stream& stream, float* logits) const {
  const int rows = batch.seqs.rows;
  arena.reset();
  Residual x(kernels_, arena, rows, c_.D);
  std::vector<float*> a;
  for (const int64_t width : widths()) {
    a.push_back(arena.floats(static_cast<size_t>(rows) * static_cast<size_t>(width)));
  }
  float* hidden = a.back();
  float* picked = arena.floats(static_cast<size_t>(batch.num_logits) * static_cast<size_t>(c_.D));
  const DeltaMixerScratch scratch{a[0], a[1], a[2], a[3], a[4], hidden, c_.F};
  const Head last{.norm = &tokens_.norm, .W = tokens_.head_matrix(), .eps = c_.eps, .soft_cap = 0};
  kernels_.embed({.rows = rows, .E = tokens_.embedding.matrix(), .token = batch.tokens, .x = x.x()},
                 stream);
  for (size_t b = 0; b < blocks_.size(); ++b) {
    const size_t first = states_a_block() * b;
    const DeltaMixerState state{states.data(first),
                                c_.width > 0 ? states.array(first + 1) : nullptr};
    delta_mixer(c_, blocks_[b].mixer, batch.seqs, state, scratch, x, blocks_[b].ffn.reader(),
                kernels_, stream);
    feed_forward(blocks_[b].ffn, c_.eps, x, reader_after(blocks_, b, last), hidden, kernels_,
                 stream);
  }
  head(last, batch, x, picked, logits, kernels_, stream);
}

}  // namespace
}  // namespace delta_net

std::unique_ptr<const Model> load_delta_net(Checkpoint& checkpoint, Backend& backend,
                                            const LoadOptions& options,
                                            const Checkpoint::Progress& progress) {
  return std::make_unique<delta_net::DeltaNet>(checkpoint, backend, options, progress);
}

}  // namespace recurve
