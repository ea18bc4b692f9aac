#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/ops/ragged.h"
#include "kernels/reference/open_state.h"

namespace recurve::reference {

// Each sequence's rows in chunks of at most `chunk`, a head after the other: calls
// work(slot, head, row, L, S) with the first of the chunk's L rows and the head's part of the
// state, S: (matrix) in fp32, which goes into the state after each call. state: (slots, H, matrix)
template <typename Work>
void for_each_chunk(const Ragged& seqs, const StateData& state, int H, int64_t matrix, int chunk,
                    const Work& work) {
  std::vector<float> copy(OpenState::copy_floats(state, matrix));
  for (int seq = 0; seq < seqs.num_seqs; ++seq) {
    const int end = seqs.begin[seq + 1], slot = seqs.slot[seq];
    for (int head = 0; head < H; ++head) {
      OpenState S(state, (int64_t{slot} * H + head) * matrix, matrix, copy.data());
      for (int row = seqs.begin[seq]; row < end;) {
        const int L = std::min(chunk, end - row);
        work(slot, head, row, L, S.values());
        row += L;
        S.end_chunk();
      }
    }
  }
}

}  // namespace recurve::reference
