#pragma once
#include "kernels/backend.h"
#include "kernels/ops/rnn.h"

// The forms of the recurrent cells. Which one is taken depends on the matrix alone, but for
// sm90/rnn/rnn.cu, which does what rnn_by_tiles() does, to the bit, in one launch.
namespace recurve::cuda::sm80 {

// Heads whose matrix stays in the registers of a block over all rows.
inline bool rnn_fits(const RnnArgs& args) { return args.DH <= 64; }
void rnn_in_registers(const RnnArgs& args, Stream& stream);

// A launch a row, for all sequences that have it, over the whole GPU: matrices in bf16 whose rows
// are whole vectors, on the tensor cores.
inline bool rnn_has_tiles(const RnnArgs& args) {
  return args.R.dtype == DType::kBF16 && args.DH % 8 == 0;
}
void rnn_by_tiles(const RnnArgs& args, Stream& stream);

// Does the same for any heads.
void rnn_row_by_row(const RnnArgs& args, Stream& stream);

// The last row of each sequence, from y into the state h: when all rows are done.
void rnn_keep_last_rows(const RnnArgs& args, Stream& stream);

}  // namespace recurve::cuda::sm80
