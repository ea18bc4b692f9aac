// Tiles of a product of matrices x M, whose sums stay in registers while rows of M pass by,
// compiled once for each instruction set. Each sum takes its products in the order of the rows of
// M, so it does not depend on the tile that it was computed in.
#if defined(RECURVE_CPU_SUM_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef RECURVE_CPU_SUM_TILE_INL_H
#undef RECURVE_CPU_SUM_TILE_INL_H
#else
#define RECURVE_CPU_SUM_TILE_INL_H
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "kernels/cpu/linear/dot_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A tile of sums is so many rows and two vectors of columns: each product reads an operand of its
// own only half the time, and no sum waits for itself.
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) || HWY_TARGET == HWY_NEON
constexpr int kSumRows = 8;
#else
constexpr int kSumRows = 6;
#endif

// Rows of the tiles that come after those of ROWS: four still keep the units busy.
template <int ROWS>
constexpr int kFewerRows = ROWS > 4 ? 4 : ROWS / 2;

// sum[r] += x[r][x_at] row, for a row of M.
template <int ROWS, int VECTORS, class D>
HWY_INLINE void add_products(D d, const float* const (&x)[ROWS], int64_t x_at, const float* row,
                             hn::Vec<D> (&sum)[ROWS][VECTORS]) {
  hn::Vec<D> columns[VECTORS];
  HWY_UNROLL(4)
  for (int v = 0; v < VECTORS; ++v) columns[v] = hn::LoadU(d, row + v * hn::MaxLanes(d));
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) {
    auto factor = hn::Set(d, x[r][x_at]);
    if constexpr (VECTORS > 1) keep_in_register(factor);
    HWY_UNROLL(4)
    for (int v = 0; v < VECTORS; ++v) sum[r][v] = hn::MulAdd(factor, columns[v], sum[r][v]);
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard by target
