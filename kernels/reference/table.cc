#include "kernels/reference/table.h"

namespace recurve::reference {

Kernels table() {
  Kernels kernels;
  kernels.embed = {embed, "reference"};
  kernels.gather_rows = {gather_rows, "reference"};
  kernels.rms_norm = {rms_norm, "reference"};
  kernels.linear = {linear, "reference"};
  kernels.mlstm = {mlstm, "reference", /*bf16_state=*/true};
  kernels.head_norm_gate = {head_norm_gate, "reference"};
  kernels.swiglu = {swiglu, "reference"};
  kernels.soft_cap = {soft_cap, "reference"};
  kernels.causal_conv1d = {causal_conv1d, "reference"};
  kernels.selective_scan = {selective_scan, "reference", /*bf16_state=*/true};
  kernels.ssd = {{ssd, "reference", /*bf16_state=*/true}};
  kernels.linear_recurrence = {linear_recurrence, "reference"};
  kernels.gated_rms_norm = {gated_rms_norm, "reference"};
  kernels.gla = {gla, "reference", /*bf16_state=*/true};
  kernels.gla_gate = {gla_gate, "reference"};
  kernels.hgrn_gate = {hgrn_gate, "reference"};
  kernels.head_rms_norm = {head_rms_norm, "reference"};
  kernels.positions = {positions, "reference"};
  kernels.rotary = {rotary, "reference"};
  kernels.activation = {activation, "reference"};
  kernels.rnn = {rnn, "reference"};
  kernels.layer_norm = {layer_norm, "reference"};
  kernels.headwise_linear = {headwise_linear, "reference"};
  kernels.glu = {glu, "reference"};
  kernels.skip_gate = {skip_gate, "reference"};
  kernels.add = {add, "reference"};
  kernels.feature_map = {feature_map, "reference"};
  kernels.take_tokens = {take_tokens, "reference"};
  kernels.sample = {sample, "reference"};
  return kernels;
}

}  // namespace recurve::reference
