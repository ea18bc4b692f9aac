#include "model/families/xlstm_blocks_weights.h"

#include "model/weights/convert.h"

namespace recurve::xlstm_blocks {
namespace {

VectorWeights load_vector(Checkpoint& checkpoint, Backend& backend, const std::string& name,
                          const std::vector<Shape>& shapes) {
  return VectorWeights::load(backend, checkpoint, name, shapes);
}

// (H, N, K), one matrix a head.
HostMatrix load_headwise(Checkpoint& checkpoint, Backend& backend, const std::string& name,
                         int64_t H, int64_t N, const OtherType& type) {
  return HostMatrix(backend, host_values(checkpoint.take_any({name}, {{H, N, N}, {H * N, N}})), N,
                    type);
}

// name: without ".weight".
LinearWeights load_linear(Checkpoint& checkpoint, Backend& backend, const std::string& name,
                          int64_t N, int64_t K, bool bias, const WeightFormats& formats) {
  return LinearWeights::load(
      backend, checkpoint, {{name + ".weight", N, bias ? name + ".bias" : ""}}, K, formats.linear);
}

// The gates are exponents and the blocks of the projections a few values each: both stay in fp32,
// which costs next to nothing and makes most of what bf16 would lose.
MlstmWeights load_mlstm(const Config& c, Checkpoint& checkpoint, Backend& backend,
                        const std::string& prefix, const WeightFormats& formats) {
  const auto headwise = [&](const char* name) {
    return load_headwise(checkpoint, backend, prefix + name, c.inner / c.block, c.block,
                         DType::kF32);
  };
  const std::string cell = prefix + "mlstm_cell.";
  MlstmWeights w;
  w.up = load_linear(checkpoint, backend, prefix + "proj_up", 2 * c.inner, c.D, c.bias, formats);
  if (c.width > 0) {
    w.conv = load_vector(checkpoint, backend, prefix + "conv1d.conv.weight",
                         {{c.inner, 1, c.width}, {c.inner, c.width}});
    w.conv_bias = load_vector(checkpoint, backend, prefix + "conv1d.conv.bias", {{c.inner}});
  }
  w.q = headwise("q_proj.weight");
  w.k = headwise("k_proj.weight");
  w.v = headwise("v_proj.weight");
  if (c.bias) {
    w.q_bias = load_vector(checkpoint, backend, prefix + "q_proj.bias", {{c.inner}});
    w.k_bias = load_vector(checkpoint, backend, prefix + "k_proj.bias", {{c.inner}});
    w.v_bias = load_vector(checkpoint, backend, prefix + "v_proj.bias", {{c.inner}});
  }
  w.gates = LinearWeights::load(backend, checkpoint,
                                {{cell + "igate.weight", c.H, cell + "igate.bias"},
                                 {cell + "fgate.weight", c.H, cell + "fgate.bias"}},
                                3 * c.inner, DType::kF32);
  w.head_norm = load_norm(checkpoint, backend, cell + "outnorm.weight", c.inner);
  w.skip = load_vector(checkpoint, backend, prefix + "learnable_skip", {{c.inner}});
  w.down = load_linear(checkpoint, backend, prefix + "proj_down", c.D, c.inner, c.bias, formats);
  return w;
}

// The kernel is (H, in, 4, out) with a bias (H, 4, DH) as the package's cuda backend keeps it, and
// (H, 4, out, in) with (4, H, DH) as its vanilla backend does.
void load_recurrence(const Config& c, Checkpoint& checkpoint, Backend& backend,
                     const std::string& prefix, const WeightFormats& formats,
                     SlstmWeights& weights) {
  const int64_t H = c.slstm_H, DH = c.D / H;
  const Shape shape = c.transposed_R ? Shape{H, DH, 4 * DH} : Shape{H, 4 * DH, DH};
  const Shape split = c.transposed_R ? Shape{H, DH, 4, DH} : Shape{H, 4, DH, DH};
  std::vector<float> R =
      host_values(checkpoint.take_any({prefix + "_recurrent_kernel_"}, {shape, split}));
  std::vector<float> bias =
      host_values(checkpoint.take_any({prefix + "_bias_"}, {{4 * c.D}, {H, 4, DH}, {4, H, DH}}));
  if (c.transposed_R && !R.empty()) {
    const std::vector<float> from = R;
    for (int64_t at = 0; at < H * 4 * DH * DH; ++at) {
      const int64_t in = at % DH, row = at / DH % (4 * DH), head = at / DH / (4 * DH);
      R[static_cast<size_t>(at)] = from[static_cast<size_t>((head * DH + in) * 4 * DH + row)];
    }
  }
  if (c.transposed_R && !bias.empty()) {
    const std::vector<float> from = bias;
    for (int64_t at = 0; at < 4 * c.D; ++at) {
      const int64_t d = at % DH, head = at / DH % H, gate = at / c.D;
      bias[static_cast<size_t>(at)] = from[static_cast<size_t>((head * 4 + gate) * DH + d)];
    }
  }
  weights.R = HostMatrix(backend, R, DH, formats.others);
  weights.bias = VectorWeights::from(backend, bias);
}

// The research code feeds fgate into the cell's input gate and igate into its forget gate
// (blocks/slstm/layer.py, forward), so that is what the tensors of a trained model mean.
SlstmWeights load_slstm(const Config& c, Checkpoint& checkpoint, Backend& backend,
                        const std::string& prefix, const WeightFormats& formats) {
  const auto headwise = [&](const char* name) {
    return load_headwise(checkpoint, backend, prefix + name, c.slstm_H, c.D / c.slstm_H,
                         formats.others);
  };
  SlstmWeights w;
  if (c.slstm_width > 0) {
    w.conv = load_vector(checkpoint, backend, prefix + "conv1d.conv.weight",
                         {{c.D, 1, c.slstm_width}, {c.D, c.slstm_width}});
    w.conv_bias = load_vector(checkpoint, backend, prefix + "conv1d.conv.bias", {{c.D}});
  }
  w.i = headwise("fgate.weight");
  w.f = headwise("igate.weight");
  w.z = headwise("zgate.weight");
  w.o = headwise("ogate.weight");
  load_recurrence(c, checkpoint, backend, prefix + "slstm_cell.", formats, w);
  w.head_norm = load_norm(checkpoint, backend, prefix + "group_norm.weight", c.D);
  return w;
}

}  // namespace

VectorWeights load_norm(Checkpoint& checkpoint, Backend& backend, const std::string& name,
                        int64_t size) {
  std::vector<float> values = host_values(checkpoint.take(name, {size}));
  for (float& value : values) value += 1.0f;
  return VectorWeights::from(backend, values);
}

Block load_block(const Config& c, Checkpoint& checkpoint, Backend& backend,
                 const std::string& prefix, bool is_slstm, const WeightFormats& formats) {
  Block block{};
  block.norm = load_norm(checkpoint, backend, prefix + "xlstm_norm.weight", c.D);
  if (!is_slstm) {
    block.mlstm = load_mlstm(c, checkpoint, backend, prefix + "xlstm.", formats);
    return block;
  }
  block.slstm = load_slstm(c, checkpoint, backend, prefix + "xlstm.", formats);
  if (c.F > 0) {
    const std::string f = prefix + "ffn.";
    block.slstm.ffn_norm = load_norm(checkpoint, backend, prefix + "ffn_norm.weight", c.D);
    block.slstm.ffn_up =
        load_linear(checkpoint, backend, f + "proj_up", 2 * c.F, c.D, c.ffn_bias, formats);
    block.slstm.ffn_down =
        load_linear(checkpoint, backend, f + "proj_down", c.D, c.F, c.ffn_bias, formats);
  }
  return block;
}

void add_to(WeightTally& tally, const Block& b) {
  const MlstmWeights& m = b.mlstm;
  const SlstmWeights& s = b.slstm;
  for (const LinearWeights* w : {&m.up, &m.gates, &m.down, &s.ffn_up, &s.ffn_down}) tally.add(*w);
  for (const VectorWeights* w :
       {&b.norm, &m.conv, &m.conv_bias, &m.head_norm, &m.skip, &m.q_bias, &m.k_bias, &m.v_bias,
        &s.conv, &s.conv_bias, &s.bias, &s.head_norm, &s.ffn_norm}) {
    tally.add(*w);
  }
  for (const HostMatrix* w : {&m.q, &m.k, &m.v, &s.i, &s.f, &s.z, &s.o, &s.R}) {
    tally.parameters += w->count();
    tally.bytes += static_cast<int64_t>(w->bytes());
  }
}

}  // namespace recurve::xlstm_blocks
