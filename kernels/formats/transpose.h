#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace recurve {

// (rows, columns) to (columns, rows), both dense.
template <typename T>
void transpose_values(const std::byte* from, int64_t rows, int64_t columns, std::byte* to) {
  constexpr int64_t kBlock = 64;  // both sides of a block stay in the first cache
  const auto* in = reinterpret_cast<const T*>(from);
  auto* out = reinterpret_cast<T*>(to);
  for (int64_t first = 0; first < rows; first += kBlock) {
    const int64_t last = std::min(first + kBlock, rows);
    for (int64_t begin = 0; begin < columns; begin += kBlock) {
      for (int64_t k = begin; k < std::min(begin + kBlock, columns); ++k) {
        for (int64_t row = first; row < last; ++row) out[k * rows + row] = in[row * columns + k];
      }
    }
  }
}

}  // namespace recurve
