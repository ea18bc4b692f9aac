#include "model/layers/gated_ffn.h"

namespace recurve {

void gated_ffn(const GatedFfn& ffn, float eps, int rows, float* x, float* hidden,
               const Kernels& kernels, Stream& stream) {
  kernels.linear({.rows = rows,
                  .W = ffn.gate_up.matrix(),
                  .x = x,
                  .y = hidden,
                  .norm = ffn.norm.data(),
                  .norm_eps = eps,
                  .swiglu = true},
                 stream);
  kernels.linear({.rows = rows, .W = ffn.down.matrix(), .residual = x, .x = hidden, .y = x},
                 stream);
}

}  // namespace recurve
