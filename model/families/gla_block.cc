#include "model/families/gla_block.h"

#include <algorithm>
#include <cmath>

#include "model/families/fla_weights.h"
#include "model/weights/convert.h"

namespace recurve::gla_family {
namespace {

using Parts = std::vector<LinearWeights::Part>;

std::string existing(const Checkpoint& checkpoint, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (checkpoint.find(name) != nullptr) return name;
  }
  return names.front();
}

// The second and the third thing that is projected: k and v, or HGRN2's forget gate and input.
const char* second_name(const Config& c) { return c.kind == Kind::kHgrn2 ? "f" : "k"; }
const char* third_name(const Config& c) { return c.kind == Kind::kHgrn2 ? "i" : "v"; }

LinearWeights load_projection(const Config& c, Checkpoint& checkpoint, Backend& backend,
                              const std::string& a, const WeightFormats& formats) {
  Parts parts = {{a + "q_proj.weight", c.q()},
                 {a + second_name(c) + "_proj.weight", c.k()},
                 {a + third_name(c) + "_proj.weight", c.v()}};
  if (c.output_gate) parts.push_back({a + "g_proj.weight", c.out()});
  if (c.kind == Kind::kSimpleGla) {
    parts.push_back({a + "gk_proj.weight", c.H, a + "gk_proj.bias"});
  } else if (c.kind == Kind::kGla) {
    parts.push_back({a + "gk_proj.0.weight", c.gate_rank});
  }
  return LinearWeights::load(backend, checkpoint, parts, c.D, formats.linear);
}

std::vector<float> for_all_heads(const std::vector<float>& one, int64_t H) {
  std::vector<float> all;
  for (int64_t head = 0; head < H; ++head) all.insert(all.end(), one.begin(), one.end());
  return all;
}

// of: "q" or "k". A tied layer is in the file under both names, or under one of them.
MapWeights load_map(const Config& c, Checkpoint& checkpoint, Backend& backend, const std::string& a,
                    const std::string& of, const WeightFormats& formats) {
  const bool product = c.feature_map == FeatureMap::kProduct;
  const bool biased = product || c.feature_map == FeatureMap::kSoftmax;
  std::vector<float> rows, bias;
  const auto take = [&](const std::string& name, const Shape& shape, std::vector<float>& to) {
    const std::string own = a + "feature_map_" + of + "." + name;
    std::vector<std::string> names = {own};
    if (c.map_tied) {
      names.push_back(a + "feature_map_" + (of == "q" ? "k" : "q") + "." + name);
      checkpoint.allow_extra(names);
    }
    const std::vector<float> values = host_values(checkpoint.take_any(names, {shape}));
    to.insert(to.end(), values.begin(), values.end());
  };
  for (const char* layer : product ? std::vector{"layer1", "layer2"} : std::vector{"layer"}) {
    take(std::string(layer) + ".weight", {c.DK, c.DK}, rows);
    if (biased) take(std::string(layer) + ".bias", {c.DK}, bias);
  }
  return {.W = HostMatrix(backend, for_all_heads(rows, c.H), c.DK, formats.others),
          .bias = biased ? VectorWeights::from(backend, for_all_heads(bias, c.H)) : VectorWeights(),
          .parameters = static_cast<int64_t>(rows.size() + bias.size())};
}

}  // namespace

Block load_block(const Config& c, Checkpoint& checkpoint, Backend& backend,
                 const std::string& prefix, const WeightFormats& formats) {
  const std::string a = prefix + "attn.";
  const bool hgrn2 = c.kind == Kind::kHgrn2;
  const auto vector = [&](const std::string& name, int64_t size) {
    return VectorWeights::load(backend, checkpoint, name, {{size}});
  };
  Block block;
  block.norm = vector(prefix + "attn_norm.weight", c.D);
  block.projection = load_projection(c, checkpoint, backend, a, formats);
  if (c.width > 0) {
    block.conv = fla::load_convolution(checkpoint, backend,
                                       {{a + "q_conv1d.weight", c.q()},
                                        {a + second_name(c) + "_conv1d.weight", c.k()},
                                        {a + third_name(c) + "_conv1d.weight", c.v()}},
                                       c.width);
  }
  if (c.kind == Kind::kGla) {
    block.gate_up = LinearWeights::load(backend, checkpoint,
                                        {{a + "gk_proj.1.weight", c.k(), a + "gk_proj.1.bias"}},
                                        c.gate_rank, formats.others);
  }
  if (c.map_weights) {
    block.map_q = load_map(c, checkpoint, backend, a, "q", formats);
    if (!c.map_tied) block.map_k = load_map(c, checkpoint, backend, a, "k", formats);
  }
  if (c.head_norm || hgrn2) {
    block.out_norm = vector(existing(checkpoint, {a + "g_norm_swish_gate.weight",
                                                  a + "g_norm.weight", a + "norm.weight"}),
                            hgrn2 ? c.out() : c.DV);
  }
  block.out = LinearWeights::load(backend, checkpoint, {{a + "o_proj.weight", c.D}}, c.out(),
                                  formats.linear);
  block.ffn = fla::load_ffn(checkpoint, backend, prefix, c.D, c.F, formats);
  return block;
}

// The bound of block b is the sum of the softmax over blocks from 1 to b, so the first has none.
void load_bounds(const Config& c, Checkpoint& checkpoint, Backend& backend, const std::string& name,
                 std::vector<Block>& blocks) {
  const std::vector<float> logits = host_values(checkpoint.take(name, {c.blocks, c.D}));
  if (logits.empty()) return;
  const size_t D = static_cast<size_t>(c.D);
  std::vector<double> total(D), sum(D);
  const auto weight = [&](size_t b, size_t d) {
    double largest = logits[d];
    for (size_t j = 0; j < blocks.size(); ++j) {
      largest = std::max<double>(largest, logits[j * D + d]);
    }
    return std::exp(logits[b * D + d] - largest);
  };
  for (size_t b = 0; b < blocks.size(); ++b) {
    for (size_t d = 0; d < D; ++d) total[d] += weight(b, d);
  }
  for (size_t b = 1; b < blocks.size(); ++b) {
    std::vector<float> bounds;
    for (size_t d = 0; d < D; ++d) {
      sum[d] += weight(b, d) / total[d];
      bounds.push_back(static_cast<float>(sum[d]));
    }
    blocks[b].bound = VectorWeights::from(backend, bounds);
  }
}

void add_to(WeightTally& tally, const Block& b) {
  for (const LinearWeights* weights : {&b.projection, &b.gate_up, &b.out, &b.ffn.up, &b.ffn.down}) {
    tally.add(*weights);
  }
  for (const VectorWeights* weights : {&b.norm, &b.conv, &b.out_norm, &b.ffn.norm}) {
    tally.add(*weights);
  }
  for (const MapWeights* map : {&b.map_q, &b.map_k}) {
    tally.parameters += map->parameters;
    tally.bytes += static_cast<int64_t>(map->W.bytes() + map->bias.bytes());
  }
}

}  // namespace recurve::gla_family
