// Qwen3.5 and Qwen3.6, of text alone, and Qwen3-Next: blocks of a gated delta rule
// (kernels/ops/delta_rule.h) and, every fourth one, of attention over all of a session, each with a
// gated feed-forward layer or with experts. Source: transformers' modeling_qwen3_5.py,
// modeling_qwen3_5_moe.py and modeling_qwen3_next.py.
#include <fmt/format.h>

#include "model/families/qwen3_5_config.h"
#include "model/layers/decay.h"
#include "model/load_model.h"

namespace recurve {
namespace qwen3_5 {
namespace {

using Weights = HybridWeights<DeltaMixerWeights>;

using Part = LinearWeights::Part;

// A tensor that has for each of HK heads of keys rows of several kinds, in the order of these
// kinds. counts: rows of a head, of each kind.
Part by_key_head(const std::string& name, int64_t HK, const std::vector<int64_t>& counts) {
  int64_t of_head = 0, before = 0;
  for (const int64_t count : counts) of_head += count;
  Part part(name, HK * of_head);
  for (const int64_t count : counts) {
    for (int64_t head = 0; head < HK; ++head)
      part.order.push_back({head * of_head + before, count});
    before += count;
  }
  return part;
}

// a: prefix of the mixer's tensors.
std::vector<Part> parts_of_projection(const Config& config, const std::string& a) {
  const DeltaMixerConfig& c = config.mixer;
  if (config.by_key_head) {
    const int64_t values = c.H / c.HK;  // heads of values that share one of keys
    return {
        by_key_head(a + "in_proj_qkvz.weight", c.HK, {c.DK, c.DK, values * c.DV, values * c.DV}),
        by_key_head(a + "in_proj_ba.weight", c.HK, {values, values})};
  }
  return {{a + "in_proj_qkv.weight", c.mixed()},
          {a + "in_proj_z.weight", c.out()},
          {a + "in_proj_b.weight", c.H},
          {a + "in_proj_a.weight", c.H}};
}

DeltaMixerWeights load_delta(const Config& config, Checkpoint& checkpoint, Backend& backend,
                             const std::string& prefix, const WeightFormats& formats) {
  const DeltaMixerConfig& c = config.mixer;
  const std::string a = prefix + "linear_attn.";
  DeltaMixerWeights w;
  w.norm =
      VectorWeights::load_unit_offset(backend, checkpoint, prefix + "input_layernorm.weight", c.D);
  w.projection =
      LinearWeights::load(backend, checkpoint, parts_of_projection(config, a), c.D, formats.linear);
  w.conv = VectorWeights::load(backend, checkpoint, a + "conv1d.weight",
                               {{c.mixed(), 1, c.width}, {c.mixed(), c.width}});
  w.A = load_decay(backend, checkpoint, a + "A_log", {c.H});
  w.dt_bias = VectorWeights::load(backend, checkpoint, a + "dt_bias", {{c.H}});
  w.out_norm = VectorWeights::load(backend, checkpoint, a + "norm.weight", {{c.DV}});
  w.out = LinearWeights::load(backend, checkpoint, {{a + "out_proj.weight", c.D}}, c.out(),
                              formats.linear);
  return w;
}

// mlp: prefix of the layer's tensors.
ExpertsNames names_of_experts(const std::string& mlp) {
  const std::string shared = mlp + "shared_expert.";
  return {.router = mlp + "gate.weight",
          .shared_gate = mlp + "shared_expert_gate.weight",
          .up = mlp + "experts.gate_up_proj",
          .down = mlp + "experts.down_proj",
          .expert = mlp + "experts.",
          .gate_of_one = "gate_proj.weight",
          .up_of_one = "up_proj.weight",
          .down_of_one = "down_proj.weight",
          .shared_up = {shared + "gate_proj.weight", shared + "up_proj.weight"},
          .shared_down = shared + "down_proj.weight"};
}

// prefix: of the layer's block.
Weights load_layer(const Config& c, HybridKind kind, Checkpoint& checkpoint, Backend& backend,
                   const std::string& prefix, const WeightFormats& formats) {
  Weights layer{.kind = kind};
  if (kind == HybridKind::kAttention) {
    layer.attention =
        load_attention(c.attention, checkpoint, backend, prefix + "self_attn.",
                       VectorWeights::load_unit_offset(backend, checkpoint,
                                                       prefix + "input_layernorm.weight", c.D),
                       formats);
    return layer;
  }
  if (kind == HybridKind::kMixer) {
    layer.mixer = load_delta(c, checkpoint, backend, prefix, formats);
    return layer;
  }
  const std::string mlp = prefix + "mlp.";
  VectorWeights norm = VectorWeights::load_unit_offset(
      backend, checkpoint, prefix + "post_attention_layernorm.weight", c.D);
  if (kind == HybridKind::kExperts) {
    layer.experts = load_experts(c.experts, checkpoint, backend, names_of_experts(mlp),
                                 std::move(norm), formats);
    return layer;
  }
  layer.ffn = {
      .norm = std::move(norm),
      .up = LinearWeights::load(backend, checkpoint,
                                {{mlp + "gate_proj.weight", c.F}, {mlp + "up_proj.weight", c.F}},
                                c.D, formats.linear),
      .down = LinearWeights::load(backend, checkpoint, {{mlp + "down_proj.weight", c.D}}, c.F,
                                  formats.linear)};
  return layer;
}

std::string name_of(const Config& config) {
  if (config.by_key_head) return "qwen3_next";
  return config.experts.E > 0 ? "qwen3_5_moe" : "qwen3_5";
}

class Qwen35 final : public HybridModel<DeltaMixerConfig, DeltaMixerWeights> {
 public:
  Qwen35(const Config& config, Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
         const Checkpoint::Progress& progress);
};

Qwen35::Qwen35(const Config& config, Checkpoint& checkpoint, Backend& backend,
               const LoadOptions& options, const Checkpoint::Progress& progress)
    : HybridModel(config, backend, options, name_of(config)) {
  // What a picture or a further token is predicted with.
  const int64_t skipped = checkpoint.skip({"model.visual.", "mtp."});
  const std::string prefix =
      checkpoint.detect_prefix({"model.language_model.", "model.", ""}, "norm.weight");
  tokens_ =
      load_token_weights(backend, checkpoint, prefix, "", c_.vocab, c_.D, c_.tied, options.weights);
  tokens_.norm = VectorWeights::load_unit_offset(backend, checkpoint, prefix + "norm.weight", c_.D);
  load_layers(prefix, [&](HybridKind kind, const std::string& name) {
    return load_layer(config, kind, checkpoint, backend, name, options.weights);
  });
  finish(checkpoint, backend, progress, text_config(checkpoint));
  if (skipped > 0) {
    info_.description +=
        fmt::format("; {} tensors for pictures and further tokens are not used", skipped);
  }
}

}  // namespace
}  // namespace qwen3_5

std::unique_ptr<const Model> load_qwen3_5(Checkpoint& checkpoint, Backend& backend,
                                          const LoadOptions& options,
                                          const Checkpoint::Progress& progress) {
  return std::make_unique<qwen3_5::Qwen35>(qwen3_5::read_config(checkpoint), checkpoint, backend,
                                           options, progress);
}

}  // namespace recurve
