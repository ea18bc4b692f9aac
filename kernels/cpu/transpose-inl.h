// Matrices turned over, compiled once for each instruction set.
#if defined(RECURVE_CPU_TRANSPOSE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef RECURVE_CPU_TRANSPOSE_INL_H
#undef RECURVE_CPU_TRANSPOSE_INL_H
#else
#define RECURVE_CPU_TRANSPOSE_INL_H
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "kernels/cpu/recurrence/stored_state-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
// Four values each of rows that are `stride` apart: the 128-bit block k is the row 4 k.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_quads(D d, const T* from, int64_t stride) {
  if constexpr (hn::MaxLanes(d) <= 4) {
    return load_state(d, from);
  } else {
    const hn::Half<D> half;
    const int64_t rows = hn::MaxLanes(half);
    return hn::Combine(d, load_quads(half, from + rows * stride, stride),
                       load_quads(half, from, stride));
  }
}
template <class D, class T>
HWY_INLINE void store_quads(D d, hn::Vec<D> v, T* to, int64_t stride) {
  if constexpr (hn::MaxLanes(d) <= 4) {
    store_state(d, v, to);
  } else {
    const hn::Half<D> half;
    const int64_t rows = hn::MaxLanes(half);
    store_quads(half, hn::LowerHalf(half, v), to, stride);
    store_quads(half, hn::UpperHalf(half, v), to + rows * stride, stride);
  }
}

// Transposes the 4 x 4 matrices that stand in the 128-bit blocks of four vectors.
template <class D>
HWY_INLINE void transpose_quads(D d, hn::Vec<D> (&v)[4]) {
  const hn::Repartition<uint64_t, D> pairs;
  const auto lower01 = hn::BitCast(pairs, hn::InterleaveLower(d, v[0], v[1]));
  const auto upper01 = hn::BitCast(pairs, hn::InterleaveUpper(d, v[0], v[1]));
  const auto lower23 = hn::BitCast(pairs, hn::InterleaveLower(d, v[2], v[3]));
  const auto upper23 = hn::BitCast(pairs, hn::InterleaveUpper(d, v[2], v[3]));
  v[0] = hn::BitCast(d, hn::InterleaveLower(pairs, lower01, lower23));
  v[1] = hn::BitCast(d, hn::InterleaveUpper(pairs, lower01, lower23));
  v[2] = hn::BitCast(d, hn::InterleaveLower(pairs, upper01, upper23));
  v[3] = hn::BitCast(d, hn::InterleaveUpper(pairs, upper01, upper23));
}
#endif

// to = from, (rows, columns), turned over: float, or as a state is stored. Strides: values from row
// to row.
template <class From, class To>
void turn(int64_t rows, int64_t columns, const From* from, int64_t from_stride, To* to,
          int64_t to_stride) {
  const auto one_by_one = [=](int64_t row, int64_t row_end, int64_t column) {
    for (; row < row_end; ++row) {
      for (int64_t c = column; c < columns; ++c) {
        const hn::CappedTag<float, 1> one;
        store_state(one, load_state(one, from + row * from_stride + c), to + c * to_stride + row);
      }
    }
  };
  int64_t row = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<float> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  hn::Vec<decltype(d)> v[4];
  for (; row + kLanes <= rows; row += kLanes) {  // by four columns
    int64_t column = 0;
    for (; column + 4 <= columns; column += 4) {
      const From* at = from + row * from_stride + column;
      for (int64_t i = 0; i < 4; ++i) v[i] = load_quads(d, at + i * from_stride, from_stride);
      transpose_quads(d, v);
      for (int64_t i = 0; i < 4; ++i) store_state(d, v[i], to + (column + i) * to_stride + row);
    }
    one_by_one(row, row + kLanes, column);
  }
  for (; row + 4 <= rows; row += 4) {  // by as many columns as a vector has
    int64_t column = 0;
    for (; column + kLanes <= columns; column += kLanes) {
      const From* at = from + row * from_stride + column;
      for (int64_t i = 0; i < 4; ++i) v[i] = load_state(d, at + i * from_stride);
      transpose_quads(d, v);
      for (int64_t i = 0; i < 4; ++i) {
        store_quads(d, v[i], to + (column + i) * to_stride + row, to_stride);
      }
    }
    one_by_one(row, row + 4, column);
  }
#endif
  one_by_one(row, rows, 0);
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard by target
