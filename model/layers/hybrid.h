#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "model/layers/attention.h"
#include "model/layers/delta_mixer.h"
#include "model/layers/experts.h"
#include "model/layers/feed_forward.h"
#include "model/layers/head.h"
#include "model/layers/held_rows.h"
#include "model/layers/required_ops.h"
#include "model/layers/ssd_mixer.h"
#include "model/load_model.h"
#include "model/model.h"
#include "model/special_ids.h"

namespace recurve {

// A layer reads the residual stream through its own norm and adds to it. kParallel: the mixer and
// attention, of which each reads what was there before the other.
enum class HybridKind { kMixer, kAttention, kParallel, kFeedForward, kExperts };

inline bool mixes(HybridKind kind) {
  return kind == HybridKind::kMixer || kind == HybridKind::kParallel;
}
inline bool attends(HybridKind kind) {
  return kind == HybridKind::kAttention || kind == HybridKind::kParallel;
}

struct HybridLayer {
  HybridKind kind;
  int block;  // of the checkpoint, from 0; a block is one layer or several
};

// The layers of blocks that are attention or the mixer, each followed by a feed-forward layer or
// one of experts.
inline std::vector<HybridLayer> with_feed_forward(const std::vector<bool>& attends,
                                                  const std::vector<bool>& has_experts) {
  std::vector<HybridLayer> layers;
  for (int b = 0; b < static_cast<int>(attends.size()); ++b) {
    const auto block = static_cast<size_t>(b);
    layers.push_back({attends[block] ? HybridKind::kAttention : HybridKind::kMixer, b});
    layers.push_back({has_experts[block] ? HybridKind::kExperts : HybridKind::kFeedForward, b});
  }
  return layers;
}

// A model of recurrent mixers, attention and feed-forward layers, in any order.
template <typename MixerConfig>
struct HybridConfig {
  int64_t D, vocab;
  int64_t F;                  // width of feed-forward layers; 0: there are none
  float eps;                  // of norms of the residual stream
  float embedding_scale = 1;  // of tokens that enter it
  bool tied;
  std::vector<HybridLayer> layers;  // in their order, at least one
  bool gated_ffn = true;            // of feed-forward layers
  int64_t most_tokens;              // of a session
  MixerConfig mixer;
  AttentionConfig attention;
  ExpertsConfig experts = {};

  int64_t blocks() const { return layers.back().block + 1; }
  int64_t attention_layers() const {
    return std::ranges::count_if(layers, attends, &HybridLayer::kind);
  }
  bool parallel() const {
    return std::ranges::count(layers, HybridKind::kParallel, &HybridLayer::kind) > 0;
  }
};

// The weights of a layer: of the four those of its kind. Where mixer and attention are in
// parallel, their norms are one of the checkpoint, in two scales.
template <typename MixerWeights>
struct HybridWeights {
  HybridKind kind;
  MixerWeights mixer = {};
  AttentionWeights attention = {};
  FeedForward ffn = {};
  ExpertsWeights experts = {};

  Residual::Reader reader() const {
    if (mixes(kind)) return mixer.reader();
    if (kind == HybridKind::kExperts) return experts.reader();
    return kind == HybridKind::kAttention ? attention.reader() : ffn.reader();
  }
};

// What follows from the mixer: what it asks of a backend, its heads in words, the widths of its
// scratch rows, and a call of it. first: the first array of its state. a: rows of these widths.
// spare: rows of `width` that nothing uses meanwhile.
struct HybridCall {
  const Ragged& seqs;
  const StatePool& states;
  size_t first;
  HeldRows held;
  const std::vector<float*>& a;
  float* spare;
  int64_t width;
  Residual& x;
  const Residual::Reader& next;
  const Kernels& kernels;
  Stream& stream;
};
inline void check_mixer(const DeltaMixerConfig& c, Backend& backend, const std::string& family) {
  check_delta_mixer(c, backend, family);
}
inline void check_mixer(const SsdMixerConfig& c, Backend& backend, const std::string& family) {
  check_ssd_mixer(c, backend, family);
}
inline void set_written_every(DeltaMixerConfig&, int) {}
inline void set_written_every(SsdMixerConfig& c, int every) { c.written_every = every; }
inline int written_every(const DeltaMixerConfig&) { return 1; }
inline int written_every(const SsdMixerConfig& c) { return c.written_every; }
inline size_t state_arrays(const DeltaMixerConfig&) { return 2; }
inline std::string heads_in_words(const DeltaMixerConfig& c) {
  return fmt::format("{} heads of {} x {}", c.H, c.DK, c.DV);
}
inline std::string heads_in_words(const SsdMixerConfig& c) {
  return fmt::format("{} heads of {} x {}", c.H, c.P, c.N);
}
inline std::vector<int64_t> scratch_widths(const DeltaMixerConfig& c) {
  return DeltaMixerScratch::widths(c);
}
inline std::vector<int64_t> scratch_widths(const SsdMixerConfig& c) {
  return SsdMixerScratch::widths(c);
}
inline void run_mixer(const DeltaMixerConfig& c, const DeltaMixerWeights& w, const HybridCall& h) {
  delta_mixer(c, w, h.seqs, {h.states.data(h.first), h.states.array(h.first + 1)},
              {h.a[0], h.a[1], h.a[2], h.a[3], h.a[4], h.spare, h.width}, h.x, h.next, h.kernels,
              h.stream);
}
inline void run_mixer(const SsdMixerConfig& c, const SsdMixerWeights& w, const HybridCall& h) {
  ssd_mixer(c, w, h.seqs, SsdMixerState::of(c, h.states, h.first, h.held), {h.a[0], h.a[1], h.a[2]},
            h.x, h.next, h.kernels, h.stream);
}

// All of such a model but its config and the names of its tensors: a family fills tokens_, loads
// its layers, and calls finish().
template <typename MixerConfig, typename MixerWeights>
class HybridModel : public Model {
 public:
  const ModelInfo& info() const override { return info_; }

  // Those of mixers and two an attention, and after them how far the session has come.
  StateLayout state_layout() const override {
    StateLayout layout;
    for (const HybridLayer& layer : c_.layers) {
      if (mixes(layer.kind)) add_arrays(c_.mixer, layer.block, layout);
      if (attends(layer.kind)) add_arrays(c_.attention, layer.block, layout);
    }
    layout.arrays.push_back(
        {.name = "position", .dtype = DType::kI32, .shape = {1}, .values = StateValues::kPosition});
    add_held_rows(written_every(c_.mixer), layout);
    return layout;
  }

  size_t arena_bytes(const StepLimits& limits) const override {
    const auto bytes_for = [](int count, int64_t width) {
      return Arena::bytes_for(static_cast<size_t>(count) * static_cast<size_t>(width));
    };
    size_t bytes = Residual::bytes_for(kernels_, limits.rows, c_.D, c_.parallel()) +
                   bytes_for(limits.logits, c_.D) + ExpertsScratch::bytes_for(c_.experts) +
                   bytes_of_held_rows(written_every(c_.mixer), limits);
    for (const int64_t width : widths_) bytes += bytes_for(limits.rows, width);
    return bytes;
  }

  void forward(const StepBatch& batch, const StatePool& states, Arena& arena, Stream& stream,
               float* logits) const override {
    const int rows = batch.seqs.rows;
    arena.reset();
    Residual x(kernels_, arena, rows, c_.D, c_.parallel());
    std::vector<float*> a;
    a.reserve(widths_.size());
    for (const int64_t width : widths_) {
      a.push_back(arena.floats(static_cast<size_t>(rows) * static_cast<size_t>(width)));
    }
    static_assert(sizeof(float) == sizeof(int32_t));
    auto* const position = reinterpret_cast<int32_t*>(a.back());
    float* const hidden = a[a.size() - 2];
    float* const picked =
        arena.floats(static_cast<size_t>(batch.num_logits) * static_cast<size_t>(c_.D));
    const ExpertsScratch of_experts = ExpertsScratch::of(c_.experts, a, arena);
    const AttentionScratch attending{a[0], a[1], a[2], a[3], position, frequency_.data()};
    const Head last{
        .norm = &tokens_.norm, .W = tokens_.head_matrix(), .eps = c_.eps, .soft_cap = 0};
    embed(batch, x.x(), stream);
    kernels_.positions(
        {.seqs = batch.seqs, .count = states.array<int32_t>(layer_arrays()), .position = position},
        stream);
    const HeldRows held = count_held_rows(written_every(c_.mixer), c_.mixer.chunk, batch.seqs,
                                          states, layer_arrays() + 1, kernels_, arena, stream);
    size_t first = 0;  // of the layer's arrays of state
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Weights& layer = layers_[i];
      const Residual::Reader next = reader_after(layers_, i, last);
      if (layer.kind == HybridKind::kFeedForward) {
        feed_forward(layer.ffn, c_.eps, x, next, hidden, kernels_, stream);
        continue;
      }
      if (layer.kind == HybridKind::kExperts) {
        experts(c_.experts, layer.experts, rows, of_experts, x, next, kernels_, stream);
        continue;
      }
      if (layer.kind == HybridKind::kParallel) x.branch();
      if (mixes(layer.kind)) {
        run_mixer(c_.mixer, layer.mixer,
                  {batch.seqs, states, first, held, a, hidden, c_.F, x, next, kernels_, stream});
        first += state_arrays(c_.mixer);
      }
      if (attends(layer.kind)) {
        attention(c_.attention, layer.attention, batch.seqs,
                  {states.paged(first), states.paged(first + 1)}, attending, x, next, kernels_,
                  stream);
        first += 2;
      }
    }
    head(last, batch, x, picked, logits, kernels_, stream);
  }

 protected:
  using Weights = HybridWeights<MixerWeights>;

  // Throws MissingKernels if the backend cannot compute it.
  HybridModel(HybridConfig<MixerConfig> config, Backend& backend, const LoadOptions& options,
              const std::string& family)
      : c_(std::move(config)), kernels_(backend.kernels()) {
    info_.family = family;
    if (options.chunk > 0) c_.mixer.chunk = options.chunk;
    c_.mixer.state = options.state;
    c_.attention.kv = options.kv;
    set_written_every(c_.mixer, options.written_every);
    check_mixer(c_.mixer, backend, family);
    check_attention(c_.attention, backend, family);
    check_experts(c_.experts, backend, family);
    if (c_.embedding_scale != 1 || !c_.gated_ffn) require_ops(backend, family, {"activation"});
    widths_ = widths();
  }

  // load: of (kind, prefix of the block's tensors). prefix: of all blocks.
  template <typename Load>
  void load_layers(const std::string& prefix, const Load& load) {
    for (const HybridLayer& layer : c_.layers) {
      layers_.push_back(load(layer.kind, fmt::format("{}layers.{}.", prefix, layer.block)));
    }
  }

  // Once everything is taken from the checkpoint. config: what names the special ids.
  void finish(Checkpoint& checkpoint, Backend& backend, const Checkpoint::Progress& progress,
              const nlohmann::json& config) {
    if (c_.attention.rotary.channels > 0) frequency_ = c_.attention.rotary.frequencies(backend);
    checkpoint.finish(progress);
    WeightTally tally;
    tally.add(tokens_);
    for (const Weights& layer : layers_) {
      if (mixes(layer.kind)) add_to(tally, layer.mixer);
      if (attends(layer.kind)) add_to(tally, layer.attention);
      const bool one_norm = layer.kind == HybridKind::kParallel;  // of both, in two scales
      if (one_norm) tally.parameters -= c_.D;
      if (layer.kind == HybridKind::kFeedForward) add_to(tally, layer.ffn);
      if (layer.kind == HybridKind::kExperts) add_to(tally, layer.experts);
    }
    info_.parameters = tally.parameters;
    info_.weight_bytes = tally.bytes;
    info_.description =
        fmt::format("{} blocks, {} with attention, width {}, {}{}", c_.blocks(),
                    c_.attention_layers(), c_.D, heads_in_words(c_.mixer), feed_forward_in_words());
    info_.head = tokens_.head_source;
    info_.vocab = c_.vocab;
    info_.width = c_.D;
    info_.chunk = c_.mixer.chunk;
    info_.most_tokens = c_.most_tokens;
    set_special_ids(read_special_ids(checkpoint, config), &info_);
  }

  HybridConfig<MixerConfig> c_;
  const Kernels& kernels_;
  TokenWeights tokens_;
  std::vector<Weights> layers_;
  VectorWeights frequency_;  // (rotary / 2), or empty
  ModelInfo info_;

 private:
  std::vector<int64_t> widths_;

  // Of all layers' states.
  size_t layer_arrays() const {
    const auto mixers = std::ranges::count_if(c_.layers, mixes, &HybridLayer::kind);
    return state_arrays(c_.mixer) * static_cast<size_t>(mixers) +
           2 * static_cast<size_t>(c_.attention_layers());
  }

  std::string feed_forward_in_words() const {
    std::string words = c_.F > 0 ? fmt::format(", feed-forward {}", c_.F) : "";
    if (c_.experts.E == 0) return words;
    words +=
        fmt::format(", {} experts of {}, {} a token", c_.experts.E, c_.experts.F, c_.experts.top);
    if (c_.experts.shared > 0) words += fmt::format(" and a shared one of {}", c_.experts.shared);
    return words;
  }

  // Of scratch rows: of the mixer, of attention or of experts, then of the feed-forward layer, and
  // positions.
  std::vector<int64_t> widths() const {
    std::vector<int64_t> widths = AttentionScratch::widths(c_.attention);
    for (const auto& others : {scratch_widths(c_.mixer), ExpertsScratch::widths(c_.experts)}) {
      widths.resize(std::max(widths.size(), others.size()));
      for (size_t i = 0; i < others.size(); ++i) widths[i] = std::max(widths[i], others[i]);
    }
    widths.push_back(FeedForward::hidden_width(c_.F, c_.gated_ffn));
    widths.push_back(1);
    return widths;
  }

  void embed(const StepBatch& batch, float* x, Stream& stream) const {
    const int rows = batch.seqs.rows, D = static_cast<int>(c_.D);
    kernels_.embed({.rows = rows, .E = tokens_.embedding.matrix(), .token = batch.tokens, .x = x},
                   stream);
    if (c_.embedding_scale == 1) return;
    kernels_.activation({.rows = rows,
                         .width = D,
                         .f = Activation::kIdentity,
                         .scale = c_.embedding_scale,
                         .floor = -std::numeric_limits<float>::infinity(),
                         .x_stride = D,
                         .y_stride = D,
                         .x = x,
                         .y = x},
                        stream);
  }
};

}  // namespace recurve
