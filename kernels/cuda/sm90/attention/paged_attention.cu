#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm90/attention/paged_attention.h"
#include "kernels/cuda/sm90/ops.h"

namespace recurve::cuda::sm90 {

void run(const PagedAttentionArgs& args, Stream& stream) {
  if (args.seqs.num_seqs > 0 && attends_in_steps(args)) return attend_in_steps(args, stream);
  sm80::run(args, stream);
}

}  // namespace recurve::cuda::sm90
