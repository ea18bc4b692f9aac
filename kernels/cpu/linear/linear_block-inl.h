// Products of a linear layer in tiles of a few rows and outputs, compiled once for each instruction
// set. How weights are read is a class of the format:
//
//   struct Weights {
//     Weights(const Matrix&);
//     int64_t fetch_bytes() const;  // of an output, to judge by whether they come from memory
//     static constexpr int kMostRows;  // of a tile
//     int64_t most_rows() const;       // here: kTileRows or kMostRows
//     template <int ROWS>
//     static constexpr int kOutputs;  // of a tile of so many rows
//     // out[r][n] = x_r . w_n for the outputs first, ..., first + OUTPUTS - 1, none past N - 1.
//     template <int ROWS, int OUTPUTS>
//     void dot(const float* const (&x)[ROWS], int64_t first, bool fetch, float
//     (&out)[ROWS][OUTPUTS]);
//   };
#if defined(RECURVE_CPU_LINEAR_BLOCK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef RECURVE_CPU_LINEAR_BLOCK_INL_H
#undef RECURVE_CPU_LINEAR_BLOCK_INL_H
#else
#define RECURVE_CPU_LINEAR_BLOCK_INL_H
#endif

#include <algorithm>

#include "kernels/cpu/linear/dot_tile-inl.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/row_tiles.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// Matrices of this size are taken to come from memory: models that have them do not fit in a cache.
inline constexpr int64_t kMemoryBytes = 4 << 20;
template <class Weights>
bool is_far(const LinearArgs& a, const Weights& weights) {
  return a.W.N * weights.fetch_bytes() >= kMemoryBytes;
}

// Weights in fp32 or bf16.
template <typename T>
struct PlainWeights {
  explicit PlainWeights(const Matrix& W) : data(static_cast<const T*>(W.data)), N(W.N), K(W.K) {}

  template <int ROWS, int OUTPUTS>
  HWY_INLINE void dot(const float* const (&x)[ROWS], int64_t n, bool fetch,
                      float (&out)[ROWS][OUTPUTS]) const {
    const T* w[OUTPUTS];
    for (int j = 0; j < OUTPUTS; ++j) w[j] = data + std::min(n + j, N - 1) * K;
    dot_tile(K, x, w, fetch, out);
  }

  // See linear_panel-inl.h. In fp32 there is nothing to widen.
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  static constexpr int kRowsForPanels = 24, kRowsForFarPanels = sizeof(T) < sizeof(float) ? 97 : 24;
#else
  static constexpr int kRowsForPanels = 24, kRowsForFarPanels = sizeof(T) < sizeof(float) ? 64 : 24;
#endif
  void widen(int64_t n, int64_t begin, int64_t end, int64_t step, float* to) const {
    const DotFloats d;
    const T* const w = data + n * K;
    const int64_t whole = std::min(end, K / kDotLanes);
    int64_t v = begin;
    for (; v < whole; ++v, to += step) {
      fetch_lines<1>(reinterpret_cast<const std::byte*>(w + v * kDotLanes) + FetchFar::kAhead);
      hn::StoreU(load_widened(w + v * kDotLanes), d, to);
    }
    if (v == end) return;
    T padded[1][kDotLanes];
    const T* row[1];
    pad_columns(v * kDotLanes, K - v * kDotLanes, {w}, padded, row);
    hn::StoreU(load_widened(row[0]), d, to);
  }

  int64_t fetch_bytes() const { return K * int64_t{sizeof(T)}; }

  // In fp32 there is nothing to widen, and weights fill the caches sooner.
  static constexpr int kMostRows = kNarrowTileRows;
  template <int ROWS>
  static constexpr int kOutputs = kTileOutputs<ROWS>;
  static constexpr int64_t kNarrowColumns = 1024;
  int64_t most_rows() const {
    return sizeof(T) < sizeof(float) || K <= kNarrowColumns ? kMostRows : kTileRows;
  }

  const T* data;
  int64_t N, K;
};

// Rows [row, row + ROWS) and outputs [n, n + OUTPUTS) as far as they exist.
template <int ROWS, int OUTPUTS, class Weights>
void tile(const LinearArgs& a, const Weights& weights, int64_t row, int64_t n, bool fetch) {
  const int64_t N = a.W.N, K = a.W.K;
  const float* x[ROWS];
  for (int r = 0; r < ROWS; ++r) x[r] = a.x + (row + r) * K;
  float sums[ROWS][OUTPUTS];
  weights.dot(x, n, fetch, sums);

  for (int r = 0; r < ROWS; ++r) {
    finish_outputs(a, row + r, n, std::min<int64_t>(OUTPUTS, N - n), sums[r]);
  }
}

// All outputs in [begin, end) of ROWS rows.
template <int ROWS, class Weights>
void row_tile(const LinearArgs& a, const Weights& weights, int64_t row, int64_t begin, int64_t end,
              bool fetch) {
  constexpr int OUTPUTS = Weights::template kOutputs<ROWS>;
  for (int64_t n = begin; n < end; n += OUTPUTS) {
    tile<ROWS, OUTPUTS>(a, weights, row, n, fetch);
  }
}

template <class Weights>
void block(const LinearArgs& a, const Weights& weights, int64_t row_begin, int64_t row_end,
           int64_t begin, int64_t end) {
  // Only the first rows find their weights in memory; the next find them in the cache.
  const bool far = is_far(a, weights);
  for_row_tiles<Weights::kMostRows>(
      row_begin, row_end, weights.most_rows(), [&]<int ROWS>(int64_t row) HWY_ATTR {
        row_tile<ROWS>(a, weights, row, begin, end, far && row == row_begin);
      });
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard by target
