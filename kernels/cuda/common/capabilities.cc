#include "kernels/cuda/common/capabilities.h"

#include "kernels/cuda/sm90/capabilities.h"

namespace recurve::cuda {

void set_sm80_capabilities(Kernels& kernels) {
  kernels.selective_scan.bf16_state = true;
  kernels.mlstm.bf16_state = kernels.mlstm.rounds_in_tiles = true;
  kernels.gla.bf16_state = kernels.gla.rounds_in_tiles = true;
  kernels.ssd.bf16_state = kernels.ssd.rounds_in_tiles = true;
  kernels.ssd.begins = sm80::ssd_begins_norm;
}

void set_sm90_capabilities(Kernels& kernels) {
  kernels.linear.rounds = sm90::linear_takes;
  kernels.linear.convolves = sm90::linear_convolves;
  kernels.linear.most_rows_of_begun_norm = sm90::kMostRowsOfBegunNorm;
  kernels.ssd.begins = sm90::ssd_begins_norm;
}

}  // namespace recurve::cuda
