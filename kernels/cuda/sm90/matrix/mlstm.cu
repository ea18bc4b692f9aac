// The mLSTM's prompts in one pass through their tiles.
#include "kernels/cuda/sm80/matrix/mlstm.h"
#include "kernels/cuda/sm80/matrix/mlstm_tiles.cuh"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm90/capabilities.h"
#include "kernels/cuda/sm90/matrix/scan_chunks.cuh"
#include "kernels/cuda/sm90/ops.h"

namespace recurve::cuda::sm90 {

void run(const MlstmArgs& args, Stream& stream) {
  const bool prompts = args.seqs.num_seqs > 0 && args.seqs.max_len > 1;
  if (!prompts || !mlstm_scans(args)) return sm80::run(args, stream);
  scan_chunks(sm80::tiles_of(args),
              sm80::MlstmGates{args.i, args.f, args.stride, args.gate_soft_cap},
              sm80::mlstm_query_scale(args), stream);
  sm80::mlstm_steps_and_gate(args, stream);
}

}  // namespace recurve::cuda::sm90
