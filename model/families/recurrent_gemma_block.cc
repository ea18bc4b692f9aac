#include "model/families/recurrent_gemma_block.h"

#include <cmath>

#include "model/weights/convert.h"

namespace recurve::recurrent_gemma {
namespace {

// [H, in, out], by which a row is multiplied from the left, as rows of outputs.
HostMatrix load_parts(const Config& c, Checkpoint& checkpoint, Backend& backend,
                      const std::string& name, const OtherType& type) {
  const int64_t n = c.lru / c.H;
  const std::vector<float> values = host_values(checkpoint.take(name, {c.H, n, n}));
  std::vector<float> turned(values.size());
  for (size_t at = 0; at < values.size(); ++at) {
    const int64_t index = static_cast<int64_t>(at), in = index / n % n, out = index % n;
    turned[static_cast<size_t>(index / (n * n) * n * n + out * n + in)] = values[at];
  }
  return {backend, turned, n, type};
}

Gate load_gate(const Config& c, Checkpoint& checkpoint, Backend& backend, const std::string& name,
               const OtherType& type) {
  return {load_parts(c, checkpoint, backend, name + "_weight", type),
          VectorWeights::load(backend, checkpoint, name + "_bias", {{c.H, c.lru / c.H}, {c.lru}})};
}

VectorWeights load_rate(const Config& c, Checkpoint& checkpoint, Backend& backend,
                        const std::string& name) {
  std::vector<float> rates = host_values(checkpoint.take(name, {c.lru}));
  for (float& rate : rates) {
    const double x = rate;
    rate = static_cast<float>(-8 * (std::fmax(x, 0) + std::log1p(std::exp(-std::fabs(x)))));
  }
  return VectorWeights::from(backend, rates);
}

void load_recurrence(const Config& c, Checkpoint& checkpoint, Backend& backend,
                     const std::string& t, const WeightFormats& formats, Block& block) {
  block.in = LinearWeights::load(backend, checkpoint,
                                 {{t + "linear_x.weight", c.lru, t + "linear_x.bias"},
                                  {t + "linear_y.weight", c.lru, t + "linear_y.bias"}},
                                 c.D, formats.linear);
  block.conv = VectorWeights::load(backend, checkpoint, t + "conv_1d.weight",
                                   {{c.lru, 1, c.width}, {c.lru, c.width}});
  block.conv_bias = VectorWeights::load(backend, checkpoint, t + "conv_1d.bias", {{c.lru}});
  block.input = load_gate(c, checkpoint, backend, t + "rg_lru.input_gate", formats.others);
  block.recurrence = load_gate(c, checkpoint, backend, t + "rg_lru.recurrent_gate", formats.others);
  block.rate = load_rate(c, checkpoint, backend, t + "rg_lru.recurrent_param");
  block.out = LinearWeights::load(backend, checkpoint,
                                  {{t + "linear_out.weight", c.D, t + "linear_out.bias"}}, c.lru,
                                  formats.linear);
}

void load_attention(const Config& c, Checkpoint& checkpoint, Backend& backend, const std::string& t,
                    const WeightFormats& formats, Block& block) {
  std::vector<LinearWeights::Part> parts;
  for (const auto& [name, heads] :
       {std::pair{"q_proj", c.H}, std::pair{"k_proj", c.HK}, std::pair{"v_proj", c.HK}}) {
    parts.push_back({t + name + ".weight", heads * c.head,
                     c.attention_bias ? t + name + ".bias" : std::string()});
  }
  block.in = LinearWeights::load(backend, checkpoint, parts, c.D, formats.linear);
  block.out =
      LinearWeights::load(backend, checkpoint, {{t + "o_proj.weight", c.D, t + "o_proj.bias"}},
                          c.H * c.head, formats.linear);
}

}  // namespace

Block load_block(const Config& c, Checkpoint& checkpoint, Backend& backend,
                 const std::string& prefix, bool attends, const WeightFormats& formats) {
  const std::string t = prefix + "temporal_block.", m = prefix + "mlp_block.";
  Block block{.attends = attends};
  block.norm = VectorWeights::load_unit_offset(backend, checkpoint,
                                               prefix + "temporal_pre_norm.weight", c.D);
  if (attends) {
    load_attention(c, checkpoint, backend, t, formats, block);
  } else {
    load_recurrence(c, checkpoint, backend, t, formats, block);
  }
  block.ffn_norm =
      VectorWeights::load_unit_offset(backend, checkpoint, prefix + "channel_pre_norm.weight", c.D);
  block.gate_up = LinearWeights::load(backend, checkpoint,
                                      {{m + "gate_proj.weight", c.F, m + "gate_proj.bias"},
                                       {m + "up_proj.weight", c.F, m + "up_proj.bias"}},
                                      c.D, formats.linear);
  block.down = LinearWeights::load(backend, checkpoint,
                                   {{m + "down_proj.weight", c.D, m + "down_proj.bias"}}, c.F,
                                   formats.linear);
  return block;
}

void add_to(WeightTally& tally, const Block& b) {
  for (const LinearWeights* weights : {&b.in, &b.out, &b.gate_up, &b.down}) tally.add(*weights);
  for (const VectorWeights* weights :
       {&b.norm, &b.conv, &b.conv_bias, &b.input.b, &b.recurrence.b, &b.rate, &b.ffn_norm}) {
    tally.add(*weights);
  }
  for (const HostMatrix* matrix : {&b.input.W, &b.recurrence.W}) {
    tally.parameters += matrix->count();
    tally.bytes += static_cast<int64_t>(matrix->bytes());
  }
}

}  // namespace recurve::recurrent_gemma
