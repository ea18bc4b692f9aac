#include "model/families/delta_net_block.h"

#include "model/families/fla_weights.h"
#include "model/layers/decay.h"

namespace recurve::delta_net {

Block load_block(const Config& c, Checkpoint& checkpoint, Backend& backend,
                 const std::string& prefix, const WeightFormats& formats) {
  const std::string a = prefix + "attn.";
  std::vector<LinearWeights::Part> parts = {
      {a + "q_proj.weight", c.qk()}, {a + "k_proj.weight", c.qk()}, {a + "v_proj.weight", c.out()}};
  if (c.output_gate) parts.push_back({a + "g_proj.weight", c.out()});
  if (c.has_beta) parts.push_back({a + "b_proj.weight", c.H});
  if (c.gated()) parts.push_back({a + "a_proj.weight", c.H});
  Block block;
  block.norm = VectorWeights::load(backend, checkpoint, prefix + "attn_norm.weight", {{c.D}});
  block.projection = LinearWeights::load(backend, checkpoint, parts, c.D, formats.linear);
  if (c.width > 0) {
    block.conv = fla::load_convolution(checkpoint, backend,
                                       {{a + "q_conv1d.weight", c.qk()},
                                        {a + "k_conv1d.weight", c.qk()},
                                        {a + "v_conv1d.weight", c.out()}},
                                       c.width);
  }
  if (c.gated()) {
    block.A = load_decay(backend, checkpoint, a + "A_log", {c.H});
    block.dt_bias = VectorWeights::load(backend, checkpoint, a + "dt_bias", {{c.H}});
  }
  block.out_norm = VectorWeights::load(backend, checkpoint, a + "o_norm.weight", {{c.DV}});
  block.out = LinearWeights::load(backend, checkpoint, {{a + "o_proj.weight", c.D}}, c.out(),
                                  formats.linear);
  block.ffn = fla::load_ffn(checkpoint, backend, prefix, c.D, c.F, formats);
  return block;
}

void add_to(WeightTally& tally, const Block& b) {
  for (const LinearWeights* weights : {&b.projection, &b.out, &b.ffn.gate_up, &b.ffn.down}) {
    tally.add(*weights);
  }
  for (const VectorWeights* weights :
       {&b.norm, &b.conv, &b.A, &b.dt_bias, &b.out_norm, &b.ffn.norm}) {
    tally.add(*weights);
  }
}

}  // namespace recurve::delta_net
