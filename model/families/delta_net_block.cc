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
  if (c.gated) parts.push_back({a + "a_proj.weight", c.H});
  Block block;
  DeltaMixerWeights& w = block.mixer;
  w.norm = VectorWeights::load(backend, checkpoint, prefix + "attn_norm.weight", {{c.D}});
  w.projection = LinearWeights::load(backend, checkpoint, parts, c.D, formats.linear);
  if (c.width > 0) {
    w.conv = fla::load_convolution(checkpoint, backend,
                                   {{a + "q_conv1d.weight", c.qk()},
                                    {a + "k_conv1d.weight", c.qk()},
                                    {a + "v_conv1d.weight", c.out()}},
                                   c.width);
  }
  if (c.gated) {
    w.A = load_decay(backend, checkpoint, a + "A_log", {c.H});
    w.dt_bias = VectorWeights::load(backend, checkpoint, a + "dt_bias", {{c.H}});
  }
  w.out_norm = VectorWeights::load(backend, checkpoint, a + "o_norm.weight", {{c.DV}});
  w.out = LinearWeights::load(backend, checkpoint, {{a + "o_proj.weight", c.D}}, c.out(),
                              formats.linear);
  block.ffn = fla::load_ffn(checkpoint, backend, prefix, c.D, c.F, formats);
  return block;
}

}  // namespace recurve::delta_net
