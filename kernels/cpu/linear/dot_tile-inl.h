// Dot products of a few rows with a few others, compiled once for each instruction set.
//
// Every sum has the same shape wherever it stands: lane l of one vector accumulator takes the
// products of the columns l, l + lanes, l + 2 lanes, ... in this order, and then the lanes are
// added along one fixed tree. So a result does not depend on the tile it was computed in.
#if defined(RECURVE_CPU_DOT_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef RECURVE_CPU_DOT_TILE_INL_H
#undef RECURVE_CPU_DOT_TILE_INL_H
#else
#define RECURVE_CPU_DOT_TILE_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "kernels/bf16.h"
#include "kernels/cpu/fetch.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DotFloats = hn::ScalableTag<float>;
using DotVector = hn::Vec<DotFloats>;
inline constexpr int64_t kDotLanes = hn::MaxLanes(DotFloats());

// Accumulators that fit in the registers, operands included.
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3) || HWY_TARGET == HWY_NEON
inline constexpr int kTileRows = 6;
#else
inline constexpr int kTileRows = 3;
#endif

// Rows of a tile of two outputs: what is widened is then read by more rows, but so many rows of x
// have to stay in the first cache.
#if HWY_TARGET == HWY_AVX2
inline constexpr int kNarrowTileRows = 6;
#else
inline constexpr int kNarrowTileRows = kTileRows;
#endif

HWY_INLINE DotVector load_widened(const float* p) { return hn::LoadU(DotFloats(), p); }
HWY_INLINE DotVector load_widened(const hwy::bfloat16_t* p) {
  const hn::Rebind<hwy::bfloat16_t, DotFloats> narrow;
  return hn::PromoteTo(DotFloats(), hn::LoadU(narrow, p));
}

HWY_INLINE float one_value(const float* p) { return *p; }
HWY_INLINE float one_value(const hwy::bfloat16_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return bf16_to_f32(bits);
}

// load_widened() for a vector of floats, or one value.
template <typename D, typename T>
HWY_INLINE hn::Vec<D> load_lanes(D d, const T* p) {
  if constexpr (std::is_same_v<D, DotFloats>) {  // without vectors OneFloat is the same
    return load_widened(p);
  } else {
    return hn::Set(d, one_value(p));
  }
}

// Of a vector that several products read: left to themselves compilers load it again for each,
// which takes longer than the products.
HWY_INLINE void keep_in_register([[maybe_unused]] DotVector& v) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  asm("" : "+v"(v.raw));
#endif
}

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void store_lane_sums(DotVector a, DotVector b, DotVector c, DotVector d, float* out) {
  out[0] = hn::GetLane(a);
  out[1] = hn::GetLane(b);
  out[2] = hn::GetLane(c);
  out[3] = hn::GetLane(d);
}
#else
using Quad = hn::CappedTag<float, 4>;

// The sum of the 128-bit blocks of v.
template <class D>
HWY_INLINE hn::Vec<Quad> fold_blocks(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(d) <= 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return fold_blocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// out[0..3] = the sums of the lanes of a, b, c, d.
HWY_INLINE void store_lane_sums(DotVector a, DotVector b, DotVector c, DotVector d, float* out) {
  const DotFloats tag;
  const hn::Repartition<uint64_t, DotFloats> pairs;
  const auto ab = hn::Add(hn::InterleaveLower(tag, a, b), hn::InterleaveUpper(tag, a, b));
  const auto cd = hn::Add(hn::InterleaveLower(tag, c, d), hn::InterleaveUpper(tag, c, d));
  const auto lower = hn::InterleaveLower(pairs, hn::BitCast(pairs, ab), hn::BitCast(pairs, cd));
  const auto upper = hn::InterleaveUpper(pairs, hn::BitCast(pairs, ab), hn::BitCast(pairs, cd));
  const auto blocks = hn::Add(hn::BitCast(tag, lower), hn::BitCast(tag, upper));
  hn::StoreU(fold_blocks(tag, blocks), Quad(), out);
}
#endif

// Copies `count` columns from k on of each row to a vector filled up with zeros.
template <int ROWS, typename T>
HWY_INLINE void pad_columns(int64_t k, int64_t count, const T* const (&rows)[ROWS],
                            T (&padded)[ROWS][kDotLanes], const T* (&padded_rows)[ROWS]) {
  std::memset(padded, 0, sizeof(padded));
  for (int r = 0; r < ROWS; ++r) {
    std::memcpy(padded[r], rows[r] + k, count * sizeof(T));
    padded_rows[r] = padded[r];
  }
}

// Adds the products of the columns [k, k + lanes): the vectors of the shorter side stay in
// registers while those of the other come.
template <int ROWS, int OUTPUTS, typename T>
HWY_INLINE void add_columns(int64_t k, const float* const (&x)[ROWS], const T* const (&w)[OUTPUTS],
                            DotVector (&sum)[ROWS][OUTPUTS]) {
  if constexpr (OUTPUTS == 2) {
    DotVector w0 = load_widened(w[0] + k), w1 = load_widened(w[1] + k);
    keep_in_register(w0);
    keep_in_register(w1);
    HWY_UNROLL(8)
    for (int r = 0; r < ROWS; ++r) {
      DotVector xs = hn::LoadU(DotFloats(), x[r] + k);
      keep_in_register(xs);
      sum[r][0] = hn::MulAdd(xs, w0, sum[r][0]);
      sum[r][1] = hn::MulAdd(xs, w1, sum[r][1]);
    }
    return;
  }
  DotVector xs[ROWS];
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) {
    xs[r] = hn::LoadU(DotFloats(), x[r] + k);
    keep_in_register(xs[r]);
  }
  HWY_UNROLL(8)
  for (int n = 0; n < OUTPUTS; ++n) {
    const DotVector ws = load_widened(w[n] + k);
    HWY_UNROLL(8)
    for (int r = 0; r < ROWS; ++r) sum[r][n] = hn::MulAdd(xs[r], ws, sum[r][n]);
  }
}

// The same for the last `count` columns, fewer than a vector has.
template <int ROWS, int OUTPUTS, typename T>
HWY_INLINE void add_last_columns(int64_t k, int64_t count, const float* const (&x)[ROWS],
                                 const T* const (&w)[OUTPUTS], DotVector (&sum)[ROWS][OUTPUTS]) {
  float x_padded[ROWS][kDotLanes];
  T w_padded[OUTPUTS][kDotLanes];
  const float* x_rows[ROWS];
  const T* w_rows[OUTPUTS];
  pad_columns(k, count, x, x_padded, x_rows);
  pad_columns(k, count, w, w_padded, w_rows);
  add_columns(0, x_rows, w_rows, sum);
}

// out[r][n] = the sum of the lanes of sum[r][n].
template <int ROWS, int OUTPUTS>
HWY_INLINE void store_tile(const DotVector (&sum)[ROWS][OUTPUTS], float (&out)[ROWS][OUTPUTS]) {
  static_assert(OUTPUTS == 2 || OUTPUTS % 4 == 0);
  if constexpr (OUTPUTS == 2) {
    HWY_UNROLL(8)
    for (int r = 0; r < ROWS; r += 2) {
      const int next = std::min(r + 1, ROWS - 1);
      float four[4];
      store_lane_sums(sum[r][0], sum[r][1], sum[next][0], sum[next][1], four);
      std::copy_n(four, 2, out[r]);
      std::copy_n(four + 2, 2, out[next]);
    }
    return;
  }
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) {
    HWY_UNROLL(8)
    for (int n = 0; n + 4 <= OUTPUTS; n += 4) {
      store_lane_sums(sum[r][n], sum[r][n + 1], sum[r][n + 2], sum[r][n + 3], out[r] + n);
    }
  }
}

// out[r][n] = sum over k < K of x[r][k] w[n][k].
// fetch: the w stand one after the other in memory, and on the way what follows them is fetched.
template <int ROWS, int OUTPUTS, typename T>
HWY_INLINE void dot_tile(int64_t K, const float* const (&x)[ROWS], const T* const (&w)[OUTPUTS],
                         bool fetch, float (&out)[ROWS][OUTPUTS]) {
  constexpr int64_t kColumns = std::max<int64_t>(kLine / sizeof(T), kDotLanes);
  constexpr int64_t kLines = OUTPUTS * kColumns * int64_t{sizeof(T)} / kLine;
  DotVector sum[ROWS][OUTPUTS];
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) {
    HWY_UNROLL(8)
    for (int n = 0; n < OUTPUTS; ++n) sum[r][n] = hn::Zero(DotFloats());
  }
  int64_t k = 0;
  if (fetch) {
    const auto* after = reinterpret_cast<const std::byte*>(w[0]) + FetchFar::kAhead;
    for (; k + kColumns <= K; k += kColumns, after += kLines * kLine) {
      fetch_lines<kLines>(after);
      HWY_UNROLL(4)
      for (int64_t j = 0; j < kColumns; j += kDotLanes) add_columns(k + j, x, w, sum);
    }
  }
  for (; k + kDotLanes <= K; k += kDotLanes) add_columns(k, x, w, sum);
  if (k < K) add_last_columns(k, K - k, x, w, sum);
  store_tile(sum, out);
}

// Outputs of a tile. With few rows more at once keep enough sums going to hide the latency of an
// addition.
template <int ROWS>
inline constexpr int kTileOutputs = ROWS > kTileRows            ? 2
                                    : ROWS * 8 <= kTileRows * 4 ? 8
                                                                : 4;

// out[r][j] = x[r] . w_j for j < count; the rows w are K long and w_stride apart. fetch: as in
// dot_tile().
template <int ROWS, typename T>
void dot_rows(int64_t K, const float* const (&x)[ROWS], const T* w, int64_t w_stride, int64_t count,
              float* const (&out)[ROWS], bool fetch = false) {
  constexpr int64_t OUTPUTS = kTileOutputs<ROWS>;
  for (int64_t j = 0; j < count; j += OUTPUTS) {
    const T* rows[OUTPUTS];
    for (int64_t n = 0; n < OUTPUTS; ++n) rows[n] = w + std::min(j + n, count - 1) * w_stride;
    float sums[ROWS][OUTPUTS];
    dot_tile(K, x, rows, fetch, sums);
    for (int r = 0; r < ROWS; ++r) {
      std::copy_n(sums[r], std::min(OUTPUTS, count - j), out[r] + j);
    }
  }
}

// out[t][j] = x_t . w_j for t < L and, at least, all j <= t: scores of a chunk.
inline void dot_triangle(int64_t K, int L, const float* x, int64_t x_stride, const float* w,
                         int64_t w_stride, float* out, int64_t out_stride) {
  int t = 0;
  for (; t + kTileRows <= L; t += kTileRows) {
    const float* rows[kTileRows];
    float* outs[kTileRows];
    for (int r = 0; r < kTileRows; ++r) {
      rows[r] = x + (t + r) * x_stride;
      outs[r] = out + (t + r) * out_stride;
    }
    dot_rows(K, rows, w, w_stride, t + kTileRows, outs);
  }
  for (; t < L; ++t) {
    const float* const row[] = {x + t * x_stride};
    float* const to[] = {out + t * out_stride};
    dot_rows(K, row, w, w_stride, t + 1, to);
  }
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard by target
