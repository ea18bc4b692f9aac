#include "model/families/fla_weights.h"

#include "model/weights/convert.h"

namespace recurve::fla {

int64_t scaled(int64_t width, double factor) {
  return static_cast<int64_t>(static_cast<double>(width) * factor);
}

int64_t read_ffn_size(ConfigReader& read, int64_t D, int64_t default_ratio) {
  // Null leaves it to GatedMLP, which takes 4, whatever the config's class has for a default.
  const double otherwise = read.is_null("hidden_ratio") ? 4 : static_cast<double>(default_ratio);
  const double ratio = read.optional_number("hidden_ratio", otherwise, 1e-3, 64);
  const int64_t size = (scaled(D, ratio * 2 / 3) + 255) / 256 * 256;
  return read.optional_int("intermediate_size", size, 1, 1 << 20);
}

void ignore_ways(ConfigReader& read) {
  read.ignore({"attn_mode", "fuse_norm", "fuse_swiglu", "fuse_cross_entropy",
               "fuse_linear_cross_entropy", "use_l2warp", "max_position_embeddings",
               "state_v_first"});
}

VectorWeights load_convolution(Checkpoint& checkpoint, Backend& backend,
                               const std::vector<std::pair<std::string, int64_t>>& parts,
                               int64_t width) {
  std::vector<float> values;
  for (const auto& [name, channels] : parts) {
    const std::vector<float> part =
        host_values(checkpoint.take_any({name}, {{channels, 1, width}, {channels, width}}));
    values.insert(values.end(), part.begin(), part.end());
  }
  return VectorWeights::from(backend, values);
}

// Before 2025-02 the two halves were one matrix, called gate_proj: gate rows, then up rows.
FeedForward load_ffn(Checkpoint& checkpoint, Backend& backend, const std::string& prefix, int64_t D,
                     int64_t F, const WeightFormats& formats) {
  using Parts = std::vector<LinearWeights::Part>;
  const std::string gate = prefix + "mlp.gate_proj.weight", up = prefix + "mlp.up_proj.weight";
  const TensorView* found = checkpoint.find(gate);
  const bool fused = found != nullptr && found->rows() == 2 * F;
  const Parts parts = fused ? Parts{{gate, 2 * F}} : Parts{{gate, F}, {up, F}};
  return {.norm = VectorWeights::load(backend, checkpoint, prefix + "mlp_norm.weight", {{D}}),
          .up = LinearWeights::load(backend, checkpoint, parts, D, formats.linear),
          .down = LinearWeights::load(backend, checkpoint, {{prefix + "mlp.down_proj.weight", D}},
                                      F, formats.linear)};
}

}  // namespace recurve::fla
