#include "kernels/reference/table.h"

namespace recurve::reference {

Kernels table() {
  Kernels kernels;
  fill(kernels);
  kernels.mlstm.bf16_state = kernels.gla.bf16_state = true;
  kernels.ssd.bf16_state = kernels.selective_scan.bf16_state = true;
  kernels.rwkv7.bf16_state = true;
  return kernels;
}

}  // namespace recurve::reference
