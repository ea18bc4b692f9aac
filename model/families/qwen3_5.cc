// Qwen3.5 and Qwen3.6 without experts, of text alone: blocks of a gated delta rule
// (kernels/ops/delta_rule.h) and, every fourth one, of attention over all of a session, each with a
// gated feed-forward layer. Source: transformers' modeling_qwen3_5.py.
#include <fmt/format.h>

#include "model/families/qwen3_5_config.h"
#include "model/layers/decay.h"
#include "model/load_model.h"

namespace recurve {
namespace qwen3_5 {
namespace {

constexpr const char* kName = "qwen3_5";

using Weights = HybridWeights<DeltaMixerWeights>;

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
    layer.mixer = load_delta(c.mixer, checkpoint, backend, prefix, formats);
    return layer;
  }
  const std::string mlp = prefix + "mlp.";
  layer.ffn = {
      .norm = VectorWeights::load_unit_offset(backend, checkpoint,
                                              prefix + "post_attention_layernorm.weight", c.D),
      .up = LinearWeights::load(backend, checkpoint,
                                {{mlp + "gate_proj.weight", c.F}, {mlp + "up_proj.weight", c.F}},
                                c.D, formats.linear),
      .down = LinearWeights::load(backend, checkpoint, {{mlp + "down_proj.weight", c.D}}, c.F,
                                  formats.linear)};
  return layer;
}

class Qwen35 final : public HybridModel<DeltaMixerConfig, DeltaMixerWeights> {
 public:
  Qwen35(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
         const Checkpoint::Progress& progress);
};

Qwen35::Qwen35(Checkpoint& checkpoint, Backend& backend, const LoadOptions& options,
               const Checkpoint::Progress& progress)
    : HybridModel(read_config(checkpoint), backend, options, kName) {
  // What a picture or a further token is predicted with.
  const int64_t skipped = checkpoint.skip({"model.visual.", "mtp."});
  const std::string prefix =
      checkpoint.detect_prefix({"model.language_model.", "model.", ""}, "norm.weight");
  tokens_ =
      load_token_weights(backend, checkpoint, prefix, "", c_.vocab, c_.D, c_.tied, options.weights);
  tokens_.norm = VectorWeights::load_unit_offset(backend, checkpoint, prefix + "norm.weight", c_.D);
  load_layers(prefix, [&](HybridKind kind, const std::string& name) {
    return load_layer(c_, kind, checkpoint, backend, name, options.weights);
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
  return std::make_unique<qwen3_5::Qwen35>(checkpoint, backend, options, progress);
}

}  // namespace recurve
