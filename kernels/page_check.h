#pragma once
#include <cstdint>

#include "kernels/check.h"
#include "kernels/ops/paged_attention.h"

namespace recurve {

// Ends the process where the tokens [first, last] of a slot are outside of its pages, or a page is
// outside of the memory.
inline void check_pages(const PagedData& paged, int32_t slot, int64_t first, int64_t last) {
  CHECK(slot > 0 && first >= 0 && first <= last && last / kPageTokens < paged.most);
  for (int64_t page = first / kPageTokens; page <= last / kPageTokens; ++page) {
    const int32_t number = paged.table[int64_t{slot} * paged.most + page];
    CHECK(number > 0 && number < paged.pages);
  }
}

// The same for all that a call writes, and for all that it reads. On the host: a backend with its
// own memory trusts the tables that it is given.
inline void check_pages(const AppendArgs& a) {
  CHECK(a.keys.dtype == a.values.dtype);
  for (int seq = 0; seq < a.seqs.num_seqs; ++seq) {
    const int32_t begin = a.seqs.begin[seq], end = a.seqs.begin[seq + 1], slot = a.seqs.slot[seq];
    if (slot == 0) continue;
    check_pages(a.keys, slot, a.position[begin], a.position[end - 1]);
    check_pages(a.values, slot, a.position[begin], a.position[end - 1]);
  }
}
inline void check_pages(const PagedAttentionArgs& a) {
  CHECK(a.keys.dtype == a.values.dtype);
  for (int seq = 0; seq < a.seqs.num_seqs; ++seq) {
    const int32_t last = a.position[a.seqs.begin[seq + 1] - 1], slot = a.seqs.slot[seq];
    if (slot == 0) continue;
    check_pages(a.keys, slot, 0, last);
    check_pages(a.values, slot, 0, last);
  }
}

}  // namespace recurve
