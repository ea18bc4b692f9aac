#include "model/layers/attention.h"

#include <fmt/format.h>

#include <utility>

#include "model/layers/required_ops.h"

namespace recurve {
namespace {

// One call of the layer.
class AttentionStep {
 public:
  AttentionStep(const AttentionConfig& config, const AttentionWeights& weights, const Ragged& seqs,
                const AttentionState& state, const AttentionScratch& scratch,
                const Kernels& kernels, Stream& stream)
      : c_(config),
        w_(weights),
        seqs_(seqs),
        state_(state),
        s_(scratch),
        kernels_(kernels),
        stream_(stream) {}

  void run(Residual& x, const Residual::Reader& next) const {
    kernels_.linear(x.read(w_.reader(), c_.eps, {.bias = w_.projection.bias(), .y = s_.projected}),
                    stream_);
    const Rows q = queries(), k = keys();
    turn(q, c_.H);
    turn(k, c_.HK);
    attend(q, k);
    kernels_.linear(x.add({.W = w_.out.matrix(), .bias = w_.out.bias(), .x = s_.o}, next), stream_);
  }

 private:
  struct Rows {
    float* data;
    int stride;
  };
  int projected() const { return static_cast<int>(c_.projected()); }
  int head() const { return static_cast<int>(c_.head); }

  Rows queries() const {
    if (!c_.head_norms) return {s_.projected, projected()};
    norm(w_.q_norm, c_.H, s_.projected, c_.output_gate ? 2 * head() : head(), s_.q);
    return {s_.q, static_cast<int>(c_.queries())};
  }
  Rows keys() const {
    float* k = s_.projected + c_.q_rows();
    if (!c_.head_norms) return {k, projected()};
    norm(w_.k_norm, c_.HK, k, head(), s_.k);
    return {s_.k, static_cast<int>(c_.keys())};
  }

  void norm(const VectorWeights& w, int64_t heads, const float* x, int head_stride,
            float* y) const {
    kernels_.head_rms_norm({.rows = seqs_.rows,
                            .H = static_cast<int>(heads),
                            .DV = head(),
                            .eps = c_.eps,
                            .gate_stride = 0,
                            .x = x,
                            .w = w.data(),
                            .gate = nullptr,
                            .y = y,
                            .x_stride = projected(),
                            .x_head_stride = head_stride},
                           stream_);
  }

  void turn(const Rows& rows, int64_t heads) const {
    if (c_.rotary.channels == 0) return;
    kernels_.rotary({.rows = seqs_.rows,
                     .H = static_cast<int>(heads),
                     .D = static_cast<int>(c_.rotary.channels),
                     .stride = rows.stride,
                     .position = s_.position,
                     .frequency = s_.frequency,
                     .x = rows.data,
                     .head_stride = head()},
                    stream_);
  }

  void attend(const Rows& q, const Rows& k) const {
    kernels_.append({.seqs = seqs_,
                     .HK = static_cast<int>(c_.HK),
                     .D = head(),
                     .k_stride = k.stride,
                     .v_stride = projected(),
                     .k = k.data,
                     .v = s_.projected + c_.q_rows() + c_.keys(),
                     .position = s_.position,
                     .keys = state_.keys,
                     .values = state_.values},
                    stream_);
    kernels_.paged_attention({.seqs = seqs_,
                              .H = static_cast<int>(c_.H),
                              .HK = static_cast<int>(c_.HK),
                              .D = head(),
                              .scale = c_.scale,
                              .q_stride = q.stride,
                              .q = q.data,
                              .position = s_.position,
                              .keys = state_.keys,
                              .values = state_.values,
                              .o = s_.o,
                              .gate = c_.output_gate ? s_.projected + c_.head : nullptr,
                              .gate_stride = projected(),
                              .gate_head_stride = 2 * head()},
                             stream_);
  }

  const AttentionConfig& c_;
  const AttentionWeights& w_;
  const Ragged& seqs_;
  const AttentionState& state_;
  const AttentionScratch& s_;
  const Kernels& kernels_;
  Stream& stream_;
};

}  // namespace

void read_attention_heads(ConfigReader& read, const AttentionHeads& defaults, AttentionConfig& c) {
  c.H = defaults.H ? read.optional_int("num_attention_heads", *defaults.H, 1, 4096)
                   : read.required_int("num_attention_heads", 1, 4096);
  if (!defaults.head && c.D % c.H != 0) {
    read.fail("num_attention_heads", fmt::format("a divisor of hidden_size {}", c.D),
              std::to_string(c.H));
  }
  c.HK = read.optional_int("num_key_value_heads", defaults.HK.value_or(c.H), 1, 4096);
  if (c.H % c.HK != 0) {
    read.fail("num_key_value_heads", fmt::format("a divisor of num_attention_heads {}", c.H),
              std::to_string(c.HK));
  }
  if (defaults.head) {
    c.head = read.optional_int({"head_dim", "attention_head_dim"}, *defaults.head, 1, 1 << 16);
  } else {
    c.head = c.D / c.H;
    read.must_be("head_dim", c.head);
  }
}

AttentionWeights load_attention(const AttentionConfig& c, Checkpoint& checkpoint, Backend& backend,
                                const std::string& prefix, VectorWeights norm,
                                const WeightFormats& formats) {
  const auto part = [&](const char* name, int64_t rows) {
    return LinearWeights::Part(prefix + name + ".weight", rows,
                               c.bias ? prefix + name + ".bias" : std::string());
  };
  AttentionWeights w;
  w.norm = std::move(norm);
  w.projection = LinearWeights::load(
      backend, checkpoint,
      {part("q_proj", c.q_rows()), part("k_proj", c.keys()), part("v_proj", c.keys())}, c.D,
      formats.linear);
  if (c.head_norms) {
    w.q_norm =
        VectorWeights::load_unit_offset(backend, checkpoint, prefix + "q_norm.weight", c.head);
    w.k_norm =
        VectorWeights::load_unit_offset(backend, checkpoint, prefix + "k_norm.weight", c.head);
  }
  w.out =
      LinearWeights::load(backend, checkpoint, {part("o_proj", c.D)}, c.queries(), formats.linear);
  return w;
}

void add_to(WeightTally& tally, const AttentionWeights& w) {
  for (const LinearWeights* weights : {&w.projection, &w.out}) tally.add(*weights);
  for (const VectorWeights* weights : {&w.norm, &w.q_norm, &w.k_norm}) tally.add(*weights);
}

std::vector<int64_t> AttentionScratch::widths(const AttentionConfig& c) {
  return {c.projected(), c.head_norms ? c.queries() : 0, c.head_norms ? c.keys() : 0, c.queries()};
}

void check_attention(const AttentionConfig& c, Backend& backend, std::string_view family) {
  require_ops(backend, family, {"linear", "positions", "append", "paged_attention"});
  if (c.head_norms) require_ops(backend, family, {"head_rms_norm"});
  if (c.rotary.channels > 0) require_ops(backend, family, {"rotary"});
  PagedAttentionArgs sizes{};
  sizes.H = static_cast<int>(c.H);
  sizes.HK = static_cast<int>(c.HK);
  sizes.D = static_cast<int>(c.head);
  require_sizes(backend, family, sizes);
}

void add_arrays(const AttentionConfig& c, int layer, StateLayout& layout) {
  for (const char* name : {"keys", "values"}) {
    layout.arrays.push_back({.name = name,
                             .layer = layer,
                             .dtype = c.kv,
                             .shape = {c.HK, c.head},
                             .growth = StateGrowth::kPerToken});
  }
}

void attention(const AttentionConfig& config, const AttentionWeights& weights, const Ragged& seqs,
               const AttentionState& state, const AttentionScratch& scratch, Residual& x,
               const Residual::Reader& next, const Kernels& kernels, Stream& stream) {
  AttentionStep(config, weights, seqs, state, scratch, kernels, stream).run(x, next);
}

}  // namespace recurve
