#include "kernels/cuda/common/capabilities.h"

#include "kernels/cuda/sm90/capabilities.h"

namespace recurve::cuda {

void set_sm80_capabilities(Kernels& kernels) {
  kernels.selective_scan.bf16_state = true;
  kernels.mlstm.bf16_state = kernels.mlstm.rounds_in_tiles = true;
  kernels.gla.bf16_state = kernels.gla.rounds_in_tiles = true;
  kernels.ssd.bf16_state = kernels.ssd.rounds_in_tiles = true;
  kernels.rwkv7.bf16_state = true;
  kernels.delta_rule.bf16_state = true;
  kernels.ssd.defers = sm80::ssd_defers_norm;
  kernels.ssd.holds_rows = true;
  kernels.linear.activates = sm80::linear_activates;
  kernels.token_shift.norms = sm80::token_shift_norms;
  kernels.rwkv7.cells = sm80::rwkv7_cells;
}

void set_sm90_capabilities(Kernels& kernels) {
  kernels.linear.rounds = sm90::linear_takes;
  kernels.expert_linear.rounds = sm90::experts_round;
  kernels.linear.convolves = sm90::linear_convolves;
  kernels.linear.activates = sm90::linear_activates;
  kernels.linear.most_rows_of_deferred_norm = sm90::kMostRowsOfDeferredNorm;
  kernels.delta_rule.rounds_in_tiles = true;
  kernels.gla.rounds_channels_in_tiles = true;
  kernels.ssd.defers = sm90::ssd_defers_norm;
}

}  // namespace recurve::cuda
