#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/sm80/matrix/mlstm.h"
#include "kernels/cuda/sm80/ops.h"

namespace recurve::cuda::sm80 {

// A chunk of one row is the last of its sequence, so the steps come after all chunks.
void run(const MlstmArgs& args, Stream& stream) {
  if (args.chunk > 1 && args.seqs.max_len > 1 && !mlstm_tiles(args, stream)) {
    mlstm_chunks(args, stream);
  }
  mlstm_steps_and_gate(args, stream);
}

void mlstm_steps_and_gate(const MlstmArgs& args, Stream& stream) {
  // Where all rows are steps, their kernel does that too: to the same bits.
  const bool gates = args.head_norm != nullptr, only_steps = args.seqs.max_len == 1;
  mlstm_steps(args, gates && only_steps, stream);
  if (gates && !only_steps) run(head_norm_gate_of(args), stream);
}

}  // namespace recurve::cuda::sm80
