#pragma once
#include "kernels/backend.h"
#include "kernels/ops/mlstm.h"

// The parts of the mLSTM op.
namespace recurve::cuda::sm80 {

// All chunks of two rows or more, by tiles with products in bf16: false, and nothing is done, where
// heads do not fill tiles.
bool mlstm_tiles(const MlstmArgs& args, Stream& stream);

// Does the same for any heads, with products exact to 2^-23.
void mlstm_chunks(const MlstmArgs& args, Stream& stream);

// The chunks of one row: the last of a sequence, or all where args.chunk is 1. A block owns some
// columns of C of one head of one sequence; all blocks of a head read its n and m as they were, and
// the last of them to be done advances these. gates: it normalises and gates h as well; of few
// sequences the blocks of a head are a cluster, and do so together.
void mlstm_steps(const MlstmArgs& args, bool gates, Stream& stream);

// All that is left to do behind the other chunks: these, and what is done with h.
void mlstm_steps_and_gate(const MlstmArgs& args, Stream& stream);

}  // namespace recurve::cuda::sm80
