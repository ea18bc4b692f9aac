#pragma once
#include <cstdint>

#include "kernels/ceil_div.h"

namespace recurve::cpu {

// tile.operator()<ROWS>(row) for the number of rows that is known when compiling, MOST at most.
template <int MOST, class Tile>
[[gnu::always_inline]] inline void with_rows(int64_t rows, int64_t row, const Tile& tile) {
  if constexpr (MOST > 1) {
    if (rows < MOST) return with_rows<MOST - 1>(rows, row, tile);
  }
  tile.template operator()<MOST>(row);
}

// tile.operator()<ROWS>(row) for the rows [begin, end) in tiles of nearly one size, which is `most`
// at most; that is MOST at most.
template <int MOST, class Tile>
[[gnu::always_inline]] inline void for_row_tiles(int64_t begin, int64_t end, int64_t most,
                                                 const Tile& tile) {
  for (int64_t row = begin; row < end;) {
    const int64_t rest = end - row, rows = ceil_div(rest, ceil_div(rest, most));
    with_rows<MOST>(rows, row, tile);
    row += rows;
  }
}

}  // namespace recurve::cpu
