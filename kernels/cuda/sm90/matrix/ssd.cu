// Mamba-2's prompts in one pass through their tiles.
#include "kernels/cuda/sm80/matrix/ssd_chunk.h"
#include "kernels/cuda/sm80/matrix/ssd_tiles.cuh"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm90/capabilities.h"
#include "kernels/cuda/sm90/matrix/scan_chunks.cuh"
#include "kernels/cuda/sm90/ops.h"

namespace recurve::cuda::sm90 {

void run(const SsdArgs& args, Stream& stream) {
  const bool prompts = args.seqs.num_seqs > 0 && args.seqs.max_len > 1;
  if (!prompts || !ssd_scans(args)) return sm80::run(args, stream);
  sm80::ssd_take_in(args, stream);
  scan_chunks(sm80::tiles_of(args), sm80::SsdGates{args}, 1, stream);
  sm80::ssd_steps(args, stream);
}

}  // namespace recurve::cuda::sm90
