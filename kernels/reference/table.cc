#include "kernels/reference/table.h"

#include "kernels/weight_formats.h"

namespace recurve::reference {

Kernels table() {
  Kernels kernels;
  fill(kernels);
  kernels.mlstm.bf16_state = kernels.gla.bf16_state = true;
  kernels.ssd.bf16_state = kernels.selective_scan.bf16_state = true;
  kernels.ssd.holds_rows = true;
  for (const WeightFormat* format : kWeightFormats) {
    if (!format->packed()) continue;
    kernels.linear.put({format, kernels.linear.run, "reference"});
    kernels.expert_linear.put({format, kernels.expert_linear.run, "reference"});
  }
  kernels.sample.scratch = scratch_of;
  kernels.rwkv7.bf16_state = kernels.delta_rule.bf16_state = true;
  return kernels;
}

}  // namespace recurve::reference
