#pragma once
#include "kernels/cuda/sm80/capabilities.h"
#include "kernels/ops/paged_attention.h"
#include "kernels/stream.h"

namespace recurve::cuda::sm80 {

// Channels of a head that the kernel for any heads and types takes, at most: it has a query and its
// sums in shared memory.
constexpr int kMostPagedChannels = 4096;

// Channels of a head that tiles take, at most.
constexpr int kMostTiledChannels = 256;

// Whether the tensor cores multiply: keys and values in bf16 that begin at multiples of 16 bytes.
// Depends on the shape of heads and on the pages alone, never on rows.
inline bool paged_attention_tiles(const PagedAttentionArgs& a) {
  const bool pages = aligned(a.keys.data) && aligned(a.values.data) &&
                     a.keys.page_bytes % 16 == 0 && a.values.page_bytes % 16 == 0;
  return a.keys.dtype == DType::kBF16 && a.D % 8 == 0 && a.D <= kMostTiledChannels && pages;
}

// paged_attention_tiles.cu
void attend_by_tiles(const PagedAttentionArgs& args, Stream& stream);

}  // namespace recurve::cuda::sm80
