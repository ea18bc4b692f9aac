#pragma once
#include <cuda_runtime_api.h>

#include "kernels/ops/rnn.h"

// The two forms of the recurrent cells. Which one is taken depends on the size of a head alone.
namespace recurve::cuda::sm80 {

// Heads whose matrix stays in the registers of a block over all rows.
inline bool rnn_fits(const RnnArgs& args) { return args.DH <= 64; }
void rnn_in_registers(const RnnArgs& args, cudaStream_t stream);

// Any heads: a launch a row, for all sequences that have it, over the whole GPU.
void rnn_row_by_row(const RnnArgs& args, cudaStream_t stream);

}  // namespace recurve::cuda::sm80
