#include "model/layers/feed_forward.h"

#include "kernels/fusion.h"

namespace recurve {

void add_to(WeightTally& tally, const FeedForward& ffn) {
  tally.add(ffn.up);
  tally.add(ffn.down);
  tally.add(ffn.norm);
}

void feed_forward(const FeedForward& ffn, float eps, Residual& x, const Residual::Reader& next,
                  float* hidden, const Kernels& kernels, Stream& stream) {
  LinearArgs up = x.read(ffn.reader(), eps, {.bias = ffn.up.bias(), .swiglu = ffn.gated});
  LinearArgs down = x.add({.W = ffn.down.matrix(), .bias = ffn.down.bias()}, next);
  if (ffn.gated) {
    join(kernels, up, down, hidden);
    kernels.linear(up, stream);
  } else {
    const Activations rows =
        rows_between(kernels, up.W, down.W, hidden, hidden + up.rows * down.W.K);
    up.activation = Activation::kSquaredRelu;
    up.y = hidden;
    up.y_bf16 = rows.bf16;
    down.x = rows.f32;
    down.x_bf16 = rows.bf16;
    linear_group(kernels, {{up}}, stream);
  }
  kernels.linear(down, stream);
}

}  // namespace recurve
