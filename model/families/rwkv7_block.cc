#include "model/families/rwkv7_block.h"

namespace recurve::rwkv7 {
namespace {

struct Loader {
  const Config& c;
  Checkpoint& checkpoint;
  Backend& backend;
  std::string attn;
  const WeightFormats& formats;

  LinearWeights square(const std::string& name) const {
    return LinearWeights::load(backend, checkpoint, {{attn + name, c.D}}, c.D, formats.linear);
  }
  // BlinkDL's have two dimensions of 1 before them.
  VectorWeights vector(const std::string& name, std::vector<Shape> shapes) const {
    return VectorWeights::load(backend, checkpoint, attn + name, shapes);
  }
  LowRank low_rank(const std::string& name, int64_t rank, bool bias) const {
    const std::string lora = name + "_lora.lora.";
    const std::string bias_name = bias ? attn + lora + "2.bias" : "";
    return {
        .down = LinearWeights::load(backend, checkpoint, {{attn + lora + "0.weight", rank}}, c.D,
                                    formats.others),
        .up = LinearWeights::load(backend, checkpoint, {{attn + lora + "2.weight", c.D, bias_name}},
                                  rank, formats.others)};
  }
};

// Six vectors, or as the first files have them one of all six in the same order.
void load_shift(const Loader& load, Block& block) {
  const int64_t D = load.c.D;
  if (load.checkpoint.find(load.attn + "x_x") != nullptr) {
    block.shift.push_back(load.vector("x_x", {{6, D}, {6, 1, 1, D}}));
    const float* mixes = block.shift[0].data();  // null where something does not fit
    for (int i = 0; i < 6; ++i) block.mu[i] = mixes == nullptr ? nullptr : mixes + i * D;
    return;
  }
  int i = 0;
  for (const char* name : {"x_r", "x_w", "x_k", "x_v", "x_a", "x_g"}) {
    block.shift.push_back(load.vector(name, {{1, 1, D}, {D}}));
    block.mu[i++] = block.shift.back().data();
  }
}

void add_to(WeightTally& tally, const LowRank& matrices) {
  tally.add(matrices.down);
  tally.add(matrices.up);
}

}  // namespace

LayerNorm load_norm(Checkpoint& checkpoint, Backend& backend, const std::string& name, int64_t D) {
  return {.w = VectorWeights::load(backend, checkpoint, name + ".weight", {{D}}),
          .b = VectorWeights::load(backend, checkpoint, name + ".bias", {{D}})};
}

Block load_block(const Config& c, Checkpoint& checkpoint, Backend& backend,
                 const std::string& prefix, bool first, const WeightFormats& formats) {
  const Loader load{c, checkpoint, backend, prefix + "attn.", formats};
  const Ranks ranks = ranks_of(c, checkpoint, load.attn);
  const std::vector<Shape> flat = {{c.D}, {1, 1, c.D}};
  Block block;
  block.norm = load_norm(checkpoint, backend, prefix + "attn_norm", c.D);
  load_shift(load, block);
  block.r = load.square("r_proj.weight");
  block.k = load.square("k_proj.weight");
  block.v = load.square("v_proj.weight");
  block.out = load.square("o_proj.weight");
  block.decay = load.low_rank("w", ranks.w, true);
  block.rate = load.low_rank("a", ranks.a, true);
  if (!first) block.value_mix = load.low_rank("v", ranks.v, true);
  block.gate = load.low_rank("g", ranks.g, false);
  block.k_k = load.vector("k_k", flat);
  block.k_a = load.vector("k_a", flat);
  block.r_k = load.vector("r_k", {{c.H, c.N}});
  block.head_norm = load_norm(checkpoint, backend, load.attn + "g_norm", c.D);
  block.ffn_norm = load_norm(checkpoint, backend, prefix + "ffn_norm", c.D);
  block.ffn_mu = VectorWeights::load(backend, checkpoint, prefix + "ffn.x_k", flat);
  block.ffn_key = LinearWeights::load(backend, checkpoint, {{prefix + "ffn.key.weight", c.F}}, c.D,
                                      formats.linear);
  block.ffn_value = LinearWeights::load(backend, checkpoint, {{prefix + "ffn.value.weight", c.D}},
                                        c.F, formats.linear.with_sparse_input());
  return block;
}

void add_to(WeightTally& tally, const LayerNorm& norm) {
  tally.add(norm.w);
  tally.add(norm.b);
}

void add_to(WeightTally& tally, const Block& block) {
  for (const LayerNorm* norm : {&block.norm, &block.head_norm, &block.ffn_norm}) {
    add_to(tally, *norm);
  }
  for (const VectorWeights& mix : block.shift) tally.add(mix);
  for (const LowRank* m : {&block.decay, &block.rate, &block.value_mix, &block.gate}) {
    add_to(tally, *m);
  }
  for (const LinearWeights* m :
       {&block.r, &block.k, &block.v, &block.out, &block.ffn_key, &block.ffn_value}) {
    tally.add(*m);
  }
  for (const VectorWeights* v : {&block.k_k, &block.k_a, &block.r_k, &block.ffn_mu}) tally.add(*v);
}

}  // namespace recurve::rwkv7
