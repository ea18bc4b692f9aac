#include "model/layers/gated_ffn.h"

#include "kernels/fusion.h"

namespace recurve {

void add_to(WeightTally& tally, const GatedFfn& ffn) {
  tally.add(ffn.gate_up);
  tally.add(ffn.down);
  tally.add(ffn.norm);
}

void gated_ffn(const GatedFfn& ffn, float eps, Residual& x, const Residual::Reader& next,
               float* hidden, const Kernels& kernels, Stream& stream) {
  LinearArgs up = x.read(ffn.reader(), eps, {.swiglu = true});
  LinearArgs down = x.add({.W = ffn.down.matrix()}, next);
  join(kernels, up, down, hidden);
  kernels.linear(up, stream);
  kernels.linear(down, stream);
}

}  // namespace recurve
