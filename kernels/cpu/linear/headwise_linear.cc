#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/stream.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear/headwise_linear.cc"
#include <hwy/foreach_target.h>

#include "kernels/cpu/linear/dot_tile-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// y: the outputs of a row from number n on.
void add_bias(const HeadwiseLinearArgs& a, int64_t n, int64_t count, float* y) {
  if (a.bias == nullptr) return;
  for (int64_t i = 0; i < count; ++i) y[i] += a.bias[n + i];
}

// ---- parts of any size

template <int ROWS, typename T>
void part_rows(const HeadwiseLinearArgs& a, int64_t row, int64_t head) {
  const int64_t K = a.W.K, N = a.W.N / a.H;
  const float* x[ROWS];
  float* y[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    x[r] = a.x + (row + r) * a.x_stride + head * K;
    y[r] = a.y + (row + r) * a.y_stride + head * N;
  }
  dot_rows(K, x, static_cast<const T*>(a.W.data) + head * N * K, K, N, y);
  for (float* out : y) add_bias(a, head * N, N, out);
}

// The part's rows [begin, end).
template <typename T>
void part(const HeadwiseLinearArgs& a, int64_t head, int64_t begin, int64_t end) {
  int64_t row = begin;
  for (; row + kTileRows <= end; row += kTileRows) part_rows<kTileRows, T>(a, row, head);
  for (; row < end; ++row) part_rows<1, T>(a, row, head);
}

void headwise_part(const HeadwiseLinearArgs& a, int64_t head, int64_t begin, int64_t end) {
  if (a.W.dtype == DType::kBF16) {
    part<hwy::bfloat16_t>(a, head, begin, end);
  } else {
    part<float>(a, head, begin, end);
  }
}

// ---- parts of 4 x 4, those of the published models

#if HWY_TARGET == HWY_SCALAR
void headwise_quads(const HeadwiseLinearArgs& a, int64_t begin, int64_t end) {
  for (int64_t head = 0; head < a.H; ++head) headwise_part(a, head, begin, end);
}
#else

// Columns of 4 x 4 matrices side by side, those of all parts: columns[k][n] = W[n][k].
template <class D>
HWY_INLINE void split_columns(D d, const HeadwiseLinearArgs& a, int64_t n, float* columns) {
  constexpr int64_t kLanes = hn::MaxLanes(D());
  alignas(64) float rows[4 * kLanes];
  for (int64_t at = 0; at < 4 * kLanes; at += kLanes) {
    if (a.W.dtype == DType::kF32) {
      hn::Store(hn::LoadU(d, static_cast<const float*>(a.W.data) + 4 * n + at), d, rows + at);
    } else {
      const hn::Rebind<hwy::bfloat16_t, D> narrow;
      const auto* W = static_cast<const hwy::bfloat16_t*>(a.W.data) + 4 * n;
      hn::Store(hn::PromoteTo(d, hn::LoadU(narrow, W + at)), d, rows + at);
    }
  }
  hn::Vec<D> column[4];
  hn::LoadInterleaved4(d, rows, column[0], column[1], column[2], column[3]);
  for (int64_t k = 0; k < 4; ++k) hn::StoreU(column[k], d, columns + k * a.W.N + n);
}

// The outputs [n, n + lanes) of a row, all of whose parts lie inside.
template <class D>
HWY_INLINE void apply_quads(D d, int64_t N, const float* columns, const float* x, float* y) {
  const auto values = hn::LoadU(d, x);
  auto sum = hn::Mul(hn::LoadU(d, columns), hn::Broadcast<0>(values));
  sum = hn::MulAdd(hn::LoadU(d, columns + N), hn::Broadcast<1>(values), sum);
  sum = hn::MulAdd(hn::LoadU(d, columns + 2 * N), hn::Broadcast<2>(values), sum);
  sum = hn::MulAdd(hn::LoadU(d, columns + 3 * N), hn::Broadcast<3>(values), sum);
  hn::StoreU(sum, d, y);
}

// Calls body(d, n) along the outputs: with all lanes, then part by part.
template <class Body>
HWY_INLINE void for_quads(int64_t N, Body body) {
  int64_t n = 0;
  for (; n + kDotLanes <= N; n += kDotLanes) body(Floats(), n);
  for (; n < N; n += 4) body(Quad(), n);
}

void headwise_quads(const HeadwiseLinearArgs& a, int64_t begin, int64_t end) {
  const int64_t N = a.W.N;
  float* columns = scratch(4 * N);  // (4, N)
  for_quads(N, [&](auto d, int64_t n) HWY_ATTR { split_columns(d, a, n, columns); });
  for (int64_t r = begin; r < end; ++r) {
    const float* x = a.x + r * a.x_stride;
    float* y = a.y + r * a.y_stride;
    for_quads(N, [&](auto d, int64_t n) HWY_ATTR { apply_quads(d, N, columns + n, x + n, y + n); });
    add_bias(a, 0, N, y);
  }
}
#endif

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace recurve::cpu {

HWY_EXPORT(headwise_part);
HWY_EXPORT(headwise_quads);

ScratchBytes scratch_of(const HeadwiseLinearArgs& args) {
  const bool quads = args.W.K == 4 && args.W.N == 4 * int64_t{args.H};
  return {.thread = quads ? static_cast<size_t>(4 * args.W.N) * sizeof(float) : 0};
}

void run(const HeadwiseLinearArgs& args, Stream& stream) {
  CHECK(args.W.dtype == DType::kBF16 || args.W.dtype == DType::kF32);
  const int64_t rows = args.rows, H = args.H, K = args.W.K, N = args.W.N / H;
  if (K == 4 && N == 4) {
    for_blocks(pool_of(stream), rows, 16 * H, [&](int64_t begin, int64_t end) {
      HWY_DYNAMIC_DISPATCH(headwise_quads)(args, begin, end);
    });
    return;
  }
  constexpr int64_t kRows = 48;  // rows that make a separate task, with one part
  const int64_t row_blocks = ceil_div(rows, kRows);
  const int64_t cost = std::min(rows, kRows) * K * N;
  for_blocks(pool_of(stream), H * row_blocks, cost, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t first = item % row_blocks * kRows;
      HWY_DYNAMIC_DISPATCH(headwise_part)
      (args, item / row_blocks, first, std::min(first + kRows, rows));
    }
  });
}

}  // namespace recurve::cpu
#endif  // HWY_ONCE
