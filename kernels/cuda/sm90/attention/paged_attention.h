#pragma once
#include "kernels/cuda/sm80/attention/paged_attention.h"

namespace recurve::cuda::sm90 {

// Queries of a sequence that share a head of keys and are attended to by steps, at most; those of
// longer sequences are attended to by large tiles. Both give the same bits.
constexpr int kStepQueries = 16;
__host__ __device__ inline bool has_few_queries(const PagedAttentionArgs& a, int rows) {
  return int64_t{rows} * (a.H / a.HK) <= kStepQueries;
}

// Queries of a large tile.
constexpr int kPromptQueries = 128;

// Whether the copy engine brings the pages: heads of 64, 128 or 256 channels in bf16. Depends on
// the shape of heads and on the pages alone.
inline bool copies_pages(const PagedAttentionArgs& a) {
  return sm80::paged_attention_tiles(a) && (a.D == 64 || a.D == 128 || a.D == 256);
}

// paged_attention_steps.cu: sequences with few queries.
void attend_in_steps(const PagedAttentionArgs& args, Stream& stream);

// paged_attention_prompts.cu: the others.
void attend_to_prompts(const PagedAttentionArgs& args, Stream& stream);

}  // namespace recurve::cuda::sm90
