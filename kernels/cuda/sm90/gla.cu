// Prompts of recurrences with one decay a head and row in one pass through their tiles.
#include <cstdlib>

#include "kernels/cuda/sm80/gla_chunk.h"
#include "kernels/cuda/sm80/gla_tiles.cuh"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm90/capabilities.h"
#include "kernels/cuda/sm90/ops.h"
#include "kernels/cuda/sm90/scan_chunks.cuh"

namespace recurve::cuda::sm90 {

void run(const GlaArgs& args, Stream& stream) {
  const bool prompts = args.seqs.num_seqs > 0 && args.seqs.max_len > 1;
  if (!prompts || !gla_scans(args) || getenv("TRY_SCAN") == nullptr) return sm80::run(args, stream);
  scan_chunks(sm80::tiles_of(args), sm80::GlaGates{args.decay, args.g, args.i, args.g_stride},
              args.scale, stream);
  sm80::gla_steps(args, stream);
}

}  // namespace recurve::cuda::sm90
