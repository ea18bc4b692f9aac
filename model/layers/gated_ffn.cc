#include "model/layers/gated_ffn.h"

namespace recurve {

void gated_ffn(const GatedFfn& ffn, float eps, Residual& x, const Residual::Reader& next,
               float* hidden, const Kernels& kernels, Stream& stream) {
  LinearArgs up = x.read(ffn.reader(), eps, {.y = hidden, .swiglu = true});
  LinearArgs down = x.add({.W = ffn.down.matrix(), .x = hidden}, next);
  if (kernels.linear.takes_bf16(up.W) && kernels.linear.takes_bf16(down.W)) {
    up.y_bf16 = reinterpret_cast<uint16_t*>(hidden);
    down.x_bf16 = up.y_bf16;
  }
  kernels.linear(up, stream);
  kernels.linear(down, stream);
}

}  // namespace recurve
