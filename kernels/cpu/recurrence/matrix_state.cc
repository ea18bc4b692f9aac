#include "kernels/cpu/recurrence/matrix_state.h"

#include <algorithm>

#include "kernels/cpu/aligned_memory.h"
#include "kernels/cpu/targets.h"

#ifndef RECURVE_CPU_MATRIX_STATE_ONCE
#define RECURVE_CPU_MATRIX_STATE_ONCE
namespace recurve::cpu {

inline constexpr int kMostStripColumns = 64;  // of any instruction set

}  // namespace recurve::cpu
#endif  // RECURVE_CPU_MATRIX_STATE_ONCE

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/recurrence/matrix_state.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/linear/sum_tile-inl.h"
#include "kernels/cpu/recurrence/stored_state-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// Columns of a head that are computed at once, and the tiles that they are computed in. Four
// vectors of columns fill 32 registers and take fewer loads a product than two, though so many
// columns of the matrix come from the second cache. With 16 registers it is two, and they stay in
// the first.
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) || HWY_TARGET == HWY_NEON
constexpr int kTileVectors = 4, kMostRows = 6;
constexpr int kStripColumns = 64;
#else
constexpr int kTileVectors = 2, kMostRows = kSumRows;
constexpr int kStripColumns = 32;
#endif
static_assert(kStripColumns <= kMostStripColumns);

// ---- step form

// What ROWS rows of S are multiplied with.
template <int ROWS>
struct StepFactors {
  float F[ROWS], k[ROWS], q[ROWS];
};

// COUNT vectors of columns of such rows, from j on. S: (ROWS, DV)
template <int COUNT, int ROWS, class D, class T>
HWY_INLINE void step_tile(D d, const MatrixRows& m, const StepFactors<ROWS>& x, T* S, int64_t j) {
  hn::Vec<D> value[COUNT], sum[COUNT], state[COUNT];
  load_as_columns<T>(d, m.v + j, value);
  load_as_columns<T>(d, m.o + j, sum);
  HWY_UNROLL(4)
  for (int r = 0; r < ROWS; ++r) {
    T* row = S + int64_t{r} * m.DV;
    each<COUNT>([&](int i) HWY_ATTR { fetch_state(d, row, j + i * hn::MaxLanes(d)); });
    load_columns(d, row + j, state);
    each<COUNT>([&](int i) HWY_ATTR {
      const auto added = hn::Mul(hn::Set(d, x.k[r]), value[i]);
      state[i] = hn::MulAdd(hn::Set(d, x.F[r]), state[i], added);
      sum[i] = hn::MulAdd(hn::Set(d, x.q[r]), state[i], sum[i]);
    });
    store_columns(d, state, row + j);
  }
  store_as_columns<T>(d, sum, m.o + j);
}

// Columns [begin, end) of ROWS rows of the state from `row` on. stored: S
template <int ROWS, class T>
HWY_INLINE void step_rows(const MatrixRows& m, int row, int64_t begin, int64_t end, T* stored) {
  StepFactors<ROWS> x;
  std::copy_n(m.F + row, ROWS, x.F);
  std::copy_n(m.k + row, ROWS, x.k);
  std::copy_n(m.q + row, ROWS, x.q);
  T* S = stored + int64_t{row} * m.DV;
  int64_t at = begin;
  if constexpr (sizeof(T) == 2) {  // BF16 is quicker in pairs
    constexpr int64_t kLanes = 2 * hn::MaxLanes(Floats());
    for (; at + kLanes <= end; at += kLanes) step_tile<2>(Floats(), m, x, S, at);
  }
  for_lanes(end - at, [&](auto d, int64_t j) HWY_ATTR { step_tile<1>(d, m, x, S, at + j); });
}

// Four rows of S at a time, from left to right: the state is most of what a step reads and writes,
// and streams are what memory is good at.
void step_columns(const MatrixRows& m, int begin, int count) {
  float* o = m.o + begin;
  std::fill(o, o + count, 0.0f);
  with_stored(m.S, [&](auto* S) HWY_ATTR {
    int row = 0;
    for (; row + 4 <= m.DK; row += 4) step_rows<4>(m, row, begin, begin + count, S);
    for (; row < m.DK; ++row) step_rows<1>(m, row, begin, begin + count, S);
  });
  if (m.den == nullptr) return;
  for_lanes(count, [&](auto d, int64_t j) HWY_ATTR {
    hn::StoreU(hn::Div(hn::LoadU(d, o + j), hn::Set(d, m.den[0])), d, o + j);
  });
}

// ---- chunk form

// Columns copied so that their rows lie one after the other, kStripColumns floats apart: as far
// apart as in the matrix, few of them fit in the first cache at once. The pointers are to those
// that are computed now.
struct Strip {
  int column;  // in the matrix
  float* S;    // (DK, columns)
  float* v;    // (L, columns)
};

void copy_columns(int64_t rows, int count, const float* from, int64_t stride, float* to) {
  for (int64_t row = 0; row < rows; ++row, from += stride, to += kStripColumns) {
    for_lanes(count,
              [&](auto d, int64_t j) HWY_ATTR { hn::StoreU(hn::LoadU(d, from + j), d, to + j); });
  }
}

// o of ROWS rows from t on.
template <int ROWS, int VECTORS, class D>
void output_tile(D d, const MatrixRows& m, const Strip& strip, int t) {
  constexpr int64_t kLanes = hn::MaxLanes(d);
  const float* x[ROWS];
  hn::Vec<D> sum[ROWS][VECTORS];
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) {
    x[r] = m.q + int64_t{t + r} * m.DK;
    HWY_UNROLL(4)
    for (int v = 0; v < VECTORS; ++v) sum[r][v] = hn::Zero(d);
  }
  for (int64_t k = 0; k < m.DK; ++k) add_products(d, x, k, strip.S + k * kStripColumns, sum);
  if (m.e != nullptr) {
    HWY_UNROLL(8)
    for (int r = 0; r < ROWS; ++r) {
      HWY_UNROLL(4)
      for (int v = 0; v < VECTORS; ++v) sum[r][v] = hn::Mul(hn::Set(d, m.e[t + r]), sum[r][v]);
    }
  }
  // The columns of P that all rows have, then the triangle: a row never meets a later token, which
  // might be NaN.
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) x[r] = m.P + int64_t{t + r} * m.P_stride;
  for (int64_t j = 0; j <= t; ++j) add_products(d, x, j, strip.v + j * kStripColumns, sum);
  HWY_UNROLL(8)
  for (int r = 1; r < ROWS; ++r) {
    for (int64_t j = t + 1; j <= t + r; ++j) {
      HWY_UNROLL(4)
      for (int v = 0; v < VECTORS; ++v) {
        const auto value = hn::LoadU(d, strip.v + j * kStripColumns + v * kLanes);
        sum[r][v] = hn::MulAdd(hn::Set(d, x[r][j]), value, sum[r][v]);
      }
    }
  }
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) {
    float* o = m.o + (t + r) * m.o_stride + strip.column;
    HWY_UNROLL(4)
    for (int v = 0; v < VECTORS; ++v) {
      if (m.den != nullptr) sum[r][v] = hn::Div(sum[r][v], hn::Set(d, m.den[t + r]));
      hn::StoreU(sum[r][v], d, o + v * kLanes);
    }
  }
}

// ROWS rows of the new S from `row` on.
template <int ROWS, int VECTORS, class D>
void state_tile(D d, const MatrixRows& m, const Strip& strip, int row) {
  constexpr int64_t kLanes = hn::MaxLanes(d);
  const float* k[ROWS];
  hn::Vec<D> sum[ROWS][VECTORS];
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) {
    k[r] = m.k + row + r;
    const float* old = strip.S + int64_t{row + r} * kStripColumns;
    HWY_UNROLL(4)
    for (int v = 0; v < VECTORS; ++v) {
      sum[r][v] = hn::Mul(hn::Set(d, m.F[row + r]), hn::LoadU(d, old + v * kLanes));
    }
  }
  for (int64_t j = 0; j < m.L; ++j) add_products(d, k, j * m.DK, strip.v + j * kStripColumns, sum);
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) {
    float* S = m.S.f32() + int64_t{row + r} * m.DV + strip.column;
    HWY_UNROLL(4)
    for (int v = 0; v < VECTORS; ++v) hn::StoreU(sum[r][v], d, S + v * kLanes);
  }
}

// Tiles of ROWS rows while there are so many from `row` on, then of fewer.
template <int ROWS, int VECTORS, class D>
void output_tiles(D d, const MatrixRows& m, const Strip& strip, int row) {
  for (; row + ROWS <= m.L; row += ROWS) output_tile<ROWS, VECTORS>(d, m, strip, row);
  if constexpr (ROWS > 1) output_tiles<kFewerRows<ROWS>, VECTORS>(d, m, strip, row);
}
template <int ROWS, int VECTORS, class D>
void state_tiles(D d, const MatrixRows& m, const Strip& strip, int row) {
  for (; row + ROWS <= m.DK; row += ROWS) state_tile<ROWS, VECTORS>(d, m, strip, row);
  if constexpr (ROWS > 1) state_tiles<kFewerRows<ROWS>, VECTORS>(d, m, strip, row);
}

// All outputs and then the state of VECTORS vectors of columns.
template <int VECTORS, class D>
void chunk_columns(D d, const MatrixRows& m, const Strip& strip) {
  output_tiles<kMostRows, VECTORS>(d, m, strip, 0);
  if (m.g != nullptr) {
    for (int64_t j = 0; j < m.L; ++j) {
      HWY_UNROLL(4)
      for (int v = 0; v < VECTORS; ++v) {
        float* at = strip.v + j * kStripColumns + v * hn::MaxLanes(d);
        hn::StoreU(hn::Mul(hn::Set(d, m.g[j]), hn::LoadU(d, at)), d, at);
      }
    }
  }
  state_tiles<kMostRows, VECTORS>(d, m, strip, 0);
}

// Tiles of VECTORS vectors while there are so many columns from `at` on, then of fewer.
template <int VECTORS>
void chunk_tiles(const MatrixRows& m, const Strip& strip, int at, int count) {
  constexpr int kLanes = hn::MaxLanes(Floats());
  const auto from = [&] { return Strip{strip.column + at, strip.S + at, strip.v + at}; };
  for (; at + VECTORS * kLanes <= count; at += VECTORS * kLanes) {
    chunk_columns<VECTORS>(Floats(), m, from());
  }
  if constexpr (VECTORS > 1) return chunk_tiles<VECTORS / 2>(m, strip, at, count);
  for (; at < count; ++at) chunk_columns<1>(OneFloat(), m, from());
}

// memory: (DK + L, kStripColumns)
void chunk_strip(const MatrixRows& m, int column, int count, float* memory) {
  Strip strip{column, memory, memory + int64_t{m.DK} * kStripColumns};
  if (m.DV == kStripColumns) {
    strip.S = m.S.f32();  // which is such a strip
  } else {
    copy_columns(m.DK, count, m.S.f32() + column, m.DV, strip.S);
  }
  copy_columns(m.L, count, m.v + column, m.v_stride, strip.v);
  chunk_tiles<kTileVectors>(m, strip, 0, count);
}

void matrix_columns(const MatrixRows& m, int begin, int count, float* memory) {
  if (m.L == 1) return step_columns(m, begin, count);
  for (int at = 0; at < count; at += kStripColumns) {
    chunk_strip(m, begin + at, std::min(kStripColumns, count - at), memory);
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(matrix_columns);

size_t advance_floats(int64_t DK, int64_t L) {
  return L == 1 ? 0 : static_cast<size_t>((DK + L) * kMostStripColumns);
}

ScratchBytes scratch_of_heads(int DK, int DV, int64_t L, const StateData& state, size_t floats) {
  floats += OpenState::copy_floats(state, int64_t{DK} * DV) + advance_floats(DK, L);
  return {.thread = floats * sizeof(float)};
}

void advance_columns(const MatrixRows& rows, int begin, int count) {
  static thread_local AlignedMemory memory;  // scratch() is the first stage's
  const auto floats = static_cast<int64_t>(advance_floats(rows.DK, rows.L));
  HWY_DYNAMIC_DISPATCH(matrix_columns)(rows, begin, count, memory.reserve<float>(floats));
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
