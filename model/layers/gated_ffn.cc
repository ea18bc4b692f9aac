#include "model/layers/gated_ffn.h"

namespace recurve {

void gated_ffn(const GatedFfn& ffn, float eps, int rows, float* x, float* y, float* gate_up,
               float* hidden, const Kernels& kernels, Stream& stream) {
  const int D = static_cast<int>(ffn.down.matrix().N), F = static_cast<int>(ffn.down.matrix().K);
  kernels.rms_norm({.rows = rows, .D = D, .eps = eps, .x = x, .w = ffn.norm.data(), .y = y},
                   stream);
  kernels.linear({.rows = rows, .W = ffn.gate_up.matrix(), .x = y, .y = gate_up}, stream);
  kernels.swiglu({.rows = rows, .F = F, .gate_up = gate_up, .y = hidden}, stream);
  kernels.linear({.rows = rows, .W = ffn.down.matrix(), .residual = x, .x = hidden, .y = x},
                 stream);
}

}  // namespace recurve
