#include "kernels/cpu/matrix_state.h"

#include <algorithm>

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matrix_state.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/dot_tile-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// ---- step form

// Four rows of S at a time, from left to right: the state is most of what a step reads and writes,
// and streams are what memory is good at.
template <int ROWS>
HWY_INLINE void step_rows(const MatrixRows& m, int row, int begin, int count) {
  float F[ROWS], k[ROWS], q[ROWS];
  std::copy_n(m.F + row, ROWS, F);
  std::copy_n(m.k + row, ROWS, k);
  std::copy_n(m.q + row, ROWS, q);
  float* S = m.S + int64_t{row} * m.DV + begin;
  const float* v = m.v + begin;
  float* o = m.o + begin;
  for_lanes(count, [&](auto d, int64_t j) HWY_ATTR {
    const auto value = hn::LoadU(d, v + j);
    auto sum = hn::LoadU(d, o + j);
    HWY_UNROLL(4)
    for (int r = 0; r < ROWS; ++r) {
      float* at = S + int64_t{r} * m.DV + j;
      const auto added = hn::Mul(hn::Set(d, k[r]), value);
      const auto updated = hn::MulAdd(hn::Set(d, F[r]), hn::LoadU(d, at), added);
      hn::StoreU(updated, d, at);
      sum = hn::MulAdd(hn::Set(d, q[r]), updated, sum);
    }
    hn::StoreU(sum, d, o + j);
  });
}

void step_columns(const MatrixRows& m, int begin, int count) {
  float* o = m.o + begin;
  std::fill(o, o + count, 0.0f);
  int row = 0;
  for (; row + 4 <= m.DK; row += 4) step_rows<4>(m, row, begin, count);
  for (; row < m.DK; ++row) step_rows<1>(m, row, begin, count);
  if (m.den == nullptr) return;
  for_lanes(count, [&](auto d, int64_t j) HWY_ATTR {
    hn::StoreU(hn::Div(hn::LoadU(d, o + j), hn::Set(d, m.den[0])), d, o + j);
  });
}

// ---- chunk form

// Sums of products of a broadcast value with a row of columns: sum[r][v] += x[r] * row[v].
template <int ROWS, int VECTORS, class D>
HWY_INLINE void add_products(D d, const float* const (&x)[ROWS], int64_t x_at, const float* row,
                             hn::Vec<D> (&sum)[ROWS][VECTORS]) {
  HWY_UNROLL(4)
  for (int v = 0; v < VECTORS; ++v) {
    const auto columns = hn::LoadU(d, row + v * hn::MaxLanes(d));
    HWY_UNROLL(8)
    for (int r = 0; r < ROWS; ++r) {
      sum[r][v] = hn::MulAdd(hn::Set(d, x[r][x_at]), columns, sum[r][v]);
    }
  }
}

// o of ROWS rows from t on, VECTORS vectors of columns from `column` on.
template <int ROWS, int VECTORS, class D>
void output_tile(D d, const MatrixRows& m, int t, int column) {
  const float* q[ROWS];
  const float* P[ROWS];
  hn::Vec<D> sum[ROWS][VECTORS];
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) {
    q[r] = m.q + int64_t{t + r} * m.DK;
    P[r] = m.P + int64_t{t + r} * m.P_stride;
    HWY_UNROLL(4)
    for (int v = 0; v < VECTORS; ++v) sum[r][v] = hn::Zero(d);
  }
  const float* S = m.S + column;
  for (int k = 0; k < m.DK; ++k) add_products(d, q, k, S + int64_t{k} * m.DV, sum);
  // The columns of P that all rows have, then the triangle: a row never meets a later token, which
  // might be NaN.
  const float* values = m.v + column;
  for (int j = 0; j <= t; ++j) add_products(d, P, j, values + j * m.v_stride, sum);
  HWY_UNROLL(8)
  for (int r = 1; r < ROWS; ++r) {
    for (int j = t + 1; j <= t + r; ++j) {
      HWY_UNROLL(4)
      for (int v = 0; v < VECTORS; ++v) {
        const float* at = values + j * m.v_stride + v * hn::MaxLanes(d);
        sum[r][v] = hn::MulAdd(hn::Set(d, P[r][j]), hn::LoadU(d, at), sum[r][v]);
      }
    }
  }
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) {
    float* o = m.o + (t + r) * m.o_stride + column;
    HWY_UNROLL(4)
    for (int v = 0; v < VECTORS; ++v) {
      if (m.den != nullptr) sum[r][v] = hn::Div(sum[r][v], hn::Set(d, m.den[t + r]));
      hn::StoreU(sum[r][v], d, o + v * hn::MaxLanes(d));
    }
  }
}

// ROWS rows of the new S from `row` on, VECTORS vectors of columns from `column` on.
template <int ROWS, int VECTORS, class D>
void state_tile(D d, const MatrixRows& m, int row, int column) {
  const float* k[ROWS];
  hn::Vec<D> sum[ROWS][VECTORS];
  float* S = m.S + int64_t{row} * m.DV + column;
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) {
    k[r] = m.k + row + r;
    HWY_UNROLL(4)
    for (int v = 0; v < VECTORS; ++v) {
      const auto old = hn::LoadU(d, S + int64_t{r} * m.DV + v * hn::MaxLanes(d));
      sum[r][v] = hn::Mul(hn::Set(d, m.F[row + r]), old);
    }
  }
  for (int j = 0; j < m.L; ++j) {
    add_products(d, k, int64_t{j} * m.DK, m.v + j * m.v_stride + column, sum);
  }
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) {
    HWY_UNROLL(4)
    for (int v = 0; v < VECTORS; ++v) {
      hn::StoreU(sum[r][v], d, S + int64_t{r} * m.DV + v * hn::MaxLanes(d));
    }
  }
}

// All outputs and then the state of VECTORS vectors of columns.
template <int VECTORS, class D>
void chunk_strip(D d, const MatrixRows& m, int column) {
  int t = 0;
  for (; t + kTileRows <= m.L; t += kTileRows) output_tile<kTileRows, VECTORS>(d, m, t, column);
  for (; t + 2 <= m.L; t += 2) output_tile<2, VECTORS>(d, m, t, column);
  if (t < m.L) output_tile<1, VECTORS>(d, m, t, column);
  int row = 0;
  for (; row + kTileRows <= m.DK; row += kTileRows) {
    state_tile<kTileRows, VECTORS>(d, m, row, column);
  }
  for (; row + 2 <= m.DK; row += 2) state_tile<2, VECTORS>(d, m, row, column);
  if (row < m.DK) state_tile<1, VECTORS>(d, m, row, column);
}

void matrix_columns(const MatrixRows& m, int begin, int count) {
  if (m.L == 1) return step_columns(m, begin, count);
  constexpr int kLanes = hn::MaxLanes(Floats());
  int column = begin;
  const int end = begin + count;
  for (; column + 4 * kLanes <= end; column += 4 * kLanes) chunk_strip<4>(Floats(), m, column);
  for (; column + kLanes <= end; column += kLanes) chunk_strip<1>(Floats(), m, column);
  for (; column < end; ++column) chunk_strip<1>(OneFloat(), m, column);
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(matrix_columns);

void advance_columns(const MatrixRows& rows, int begin, int count) {
  HWY_DYNAMIC_DISPATCH(matrix_columns)(rows, begin, count);
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
