#include "model/layers/gated_ffn.h"

namespace recurve {

void gated_ffn(const GatedFfn& ffn, float eps, int rows, float* x, float* hidden,
               const Kernels& kernels, Stream& stream) {
  LinearArgs up{.rows = rows,
                .W = ffn.gate_up.matrix(),
                .x = x,
                .y = hidden,
                .norm = ffn.norm.data(),
                .norm_eps = eps,
                .swiglu = true};
  LinearArgs down{.rows = rows, .W = ffn.down.matrix(), .residual = x, .x = hidden, .y = x};
  if (kernels.linear.takes_bf16(up.W) && kernels.linear.takes_bf16(down.W)) {
    up.y_bf16 = reinterpret_cast<uint16_t*>(hidden);
    down.x_bf16 = up.y_bf16;
  }
  kernels.linear(up, stream);
  kernels.linear(down, stream);
}

}  // namespace recurve
