#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/sm80/mlstm.h"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {

// A chunk of one row is the last of its sequence, so the steps come after all chunks.
void mlstm(const MlstmArgs& args, Stream& stream) {
  const cudaStream_t on = use(stream);
  if (args.chunk > 1 && args.seqs.max_len > 1) {
    mlstm_chunks(args, on);
    expect_launched("mlstm, chunks");
    mlstm_chunk_normalisers(args, on);
    expect_launched("mlstm, normalisers of chunks");
  }
  mlstm_steps(args, on);
  expect_launched("mlstm, steps");
  mlstm_step_normalisers(args, on);
  expect_launched("mlstm, normalisers of steps");
}

}  // namespace recurve::cuda::sm80
