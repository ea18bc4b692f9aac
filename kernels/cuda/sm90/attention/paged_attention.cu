#include <algorithm>

#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/sm80/ops.h"
#include "kernels/cuda/sm90/attention/paged_attention.h"
#include "kernels/cuda/sm90/ops.h"

namespace recurve::cuda::sm90 {
namespace {

// Whether the large tiles of a call are enough for more than half of the multiprocessors. Each
// takes one for as long as its keys last, so for fewer the tiles of sm80 are as fast or faster:
// they are half as large, and blocks share the keys of one.
bool occupies(const PagedAttentionArgs& a, const CudaStream& stream) {
  const int64_t queries = int64_t{a.seqs.rows} * (a.H / a.HK);
  const int64_t tiles = a.HK * std::max<int64_t>(a.seqs.num_seqs, queries / kPromptQueries);
  return 2 * tiles > stream.multiprocessors();
}

}  // namespace

void run(const PagedAttentionArgs& args, Stream& stream) {
  if (args.seqs.num_seqs == 0) return;
  const bool few = has_few_queries(args, args.seqs.max_len);
  if (!copies_pages(args) || (!few && !occupies(args, static_cast<const CudaStream&>(stream)))) {
    return sm80::run(args, stream);
  }
  const bool differ = args.seqs.rows < int64_t{args.seqs.num_seqs} * args.seqs.max_len;
  if (!few) attend_to_prompts(args, stream);
  if (few || differ) attend_in_steps(args, stream);
}

}  // namespace recurve::cuda::sm90
