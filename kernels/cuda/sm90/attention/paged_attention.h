#pragma once
#include "kernels/cuda/sm80/attention/paged_attention.h"

namespace recurve::cuda::sm90 {

// Queries of a sequence and a head of keys that a tile of steps has, at most.
constexpr int kStepQueries = 16;

// Whether the copy engine brings the pages: heads of 64, 128 or 256 channels in bf16. Depends on
// the shape of heads and on the pages alone.
inline bool copies_pages(const PagedAttentionArgs& a) {
  return sm80::paged_attention_tiles(a) && (a.D == 64 || a.D == 128 || a.D == 256);
}

// Whether steps go through pages by parts that blocks share evenly. Both this and tiles give the
// same bits.
inline bool attends_in_steps(const PagedAttentionArgs& a) {
  return copies_pages(a) && int64_t{a.seqs.max_len} * (a.H / a.HK) <= kStepQueries;
}

// paged_attention_steps.cu
void attend_in_steps(const PagedAttentionArgs& args, Stream& stream);

}  // namespace recurve::cuda::sm90
