// Products with weights that are packed in groups of columns, compiled once for each instruction
// set. What a format brings is a class:
//
//   struct Groups {
//     static constexpr int64_t kColumns, kBytes, kScaleBytes;  // of a group
//     // Of so many outputs at most, groups are open at once: as many as the registers hold.
//     static constexpr int kAbreast;
//     // Rows of a tile at most: so many leave registers for open groups.
//     static constexpr int kMostRows;
//     static constexpr int kRowsForPanels, kRowsForFarPanels;  // see linear_panel-inl.h
//     // A group as it is held in registers.
//     void open(const std::byte* data, const std::byte* scales);
//     // The values of its vector number v: of the columns v * kDotLanes, v * kDotLanes + 1, ...
//     DotVector vector(int64_t v) const;
//   };
//
// Values are widened to fp32, exactly as WeightFormat::unpack does, and multiplied in the order of
// dot_tile-inl.h: so a layer has the bits of the one in fp32 whose weights are the unpacked ones.
#if defined(RECURVE_CPU_PACKED_LINEAR_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef RECURVE_CPU_PACKED_LINEAR_INL_H
#undef RECURVE_CPU_PACKED_LINEAR_INL_H
#else
#define RECURVE_CPU_PACKED_LINEAR_INL_H
#endif

#include <algorithm>
#include <cstring>

#include "kernels/cpu/linear/linear_panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

template <class Groups>
struct PackedWeights {
  explicit PackedWeights(const Matrix& W)
      : data(static_cast<const std::byte*>(W.data)),
        scales(static_cast<const std::byte*>(W.scales)),
        N(W.N),
        K(W.K),
        row_bytes(ceil_div(W.K, Groups::kColumns) * Groups::kBytes),
        row_scales(ceil_div(W.K, Groups::kColumns) * Groups::kScaleBytes) {}

  static constexpr int kMostRows = Groups::kMostRows;
  // Sums of three rows and eight outputs leave no registers for open groups.
  template <int ROWS>
  static constexpr int kOutputs = ROWS == 3 ? 4 : kTileOutputs<ROWS>;
  int64_t most_rows() const { return kMostRows; }

  // A model whose weights are packed is no smaller than what its fp32 weights tell.
  int64_t fetch_bytes() const { return K * int64_t{sizeof(float)}; }

  // Adds the products of group g. x: of its first column, and as many as a group has.
  template <int ROWS, int OUTPUTS>
  HWY_INLINE void add_group(const float* const (&x)[ROWS], int64_t g,
                            const int64_t (&outputs)[OUTPUTS],
                            DotVector (&sum)[ROWS][OUTPUTS]) const {
    // Outputs side by side, as what follows in one of them waits for what came before.
    constexpr int kAbreast = std::min(OUTPUTS, Groups::kAbreast);
    HWY_UNROLL(8)
    for (int first = 0; first < OUTPUTS; first += kAbreast) {
      Groups opened[kAbreast];
      HWY_UNROLL(8)
      for (int j = 0; j < kAbreast; ++j) {
        opened[j].open(data + outputs[first + j] * row_bytes + g * Groups::kBytes,
                       scales + outputs[first + j] * row_scales + g * Groups::kScaleBytes);
      }
      HWY_UNROLL(16)
      for (int64_t v = 0; v < Groups::kColumns / kDotLanes; ++v) {
        DotVector xs[ROWS];
        HWY_UNROLL(8)
        for (int r = 0; r < ROWS; ++r) {
          xs[r] = hn::LoadU(DotFloats(), x[r] + v * kDotLanes);
          if constexpr (ROWS <= 2) keep_in_register(xs[r]);
        }
        HWY_UNROLL(8)
        for (int j = 0; j < kAbreast; ++j) {
          const DotVector w = opened[j].vector(v);
          HWY_UNROLL(8)
          for (int r = 0; r < ROWS; ++r)
            sum[r][first + j] = hn::MulAdd(xs[r], w, sum[r][first + j]);
        }
      }
    }
  }

  template <int ROWS, int OUTPUTS>
  HWY_INLINE void dot(const float* const (&x)[ROWS], int64_t n, bool fetch,
                      float (&out)[ROWS][OUTPUTS]) const {
    constexpr int64_t kColumns = Groups::kColumns;
    int64_t outputs[OUTPUTS];
    for (int j = 0; j < OUTPUTS; ++j) outputs[j] = std::min(n + j, N - 1);
    DotVector sum[ROWS][OUTPUTS];
    HWY_UNROLL(8)
    for (int r = 0; r < ROWS; ++r) {
      HWY_UNROLL(8)
      for (int j = 0; j < OUTPUTS; ++j) sum[r][j] = hn::Zero(DotFloats());
    }
    const float* at[ROWS];
    std::copy_n(x, ROWS, at);
    const bool near = OUTPUTS * row_bytes <= kNearTile;
    int64_t k = 0, g = 0;
    for (; k + kColumns <= K; k += kColumns, ++g) {
      if (fetch)
        near ? fetch_group<OUTPUTS, FetchNear>(n, g) : fetch_group<OUTPUTS, FetchFar>(n, g);
      add_group(at, g, outputs, sum);
      for (int r = 0; r < ROWS; ++r) at[r] += kColumns;
    }
    if (k < K) {
      float padded[ROWS][kColumns] = {};
      for (int r = 0; r < ROWS; ++r) {
        std::copy_n(at[r], K - k, padded[r]);
        at[r] = padded[r];
      }
      add_group(at, g, outputs, sum);
    }
    HWY_UNROLL(8)
    for (int r = 0; r < ROWS; ++r) {
      HWY_UNROLL(8)
      for (int j = 0; j < OUTPUTS; j += 4) {
        store_lane_sums(sum[r][j], sum[r][j + 1], sum[r][j + 2], sum[r][j + 3], out[r] + j);
      }
    }
  }

  // Of what follows the tile from output n on, group g's share: data, and scales where a line of
  // them begins.
  template <int OUTPUTS, class Fetch>
  HWY_INLINE void fetch_group(int64_t n, int64_t g) const {
    constexpr int64_t kShare = OUTPUTS * Groups::kBytes;
    static_assert(kShare % kLine == 0);
    fetch_lines<kShare / kLine, Fetch>(data + n * row_bytes + g * kShare + Fetch::kAhead);
    constexpr int64_t kScales = OUTPUTS * Groups::kScaleBytes;
    const int64_t scale = n * row_scales + g * kScales;
    if (scale % kLine < kScales) {
      fetch_lines<1, Fetch>(scales + scale + Fetch::kAhead / Groups::kBytes * Groups::kScaleBytes);
    }
  }

  // See linear_panel-inl.h.
  static constexpr int kRowsForPanels = Groups::kRowsForPanels;
  static constexpr int kRowsForFarPanels = Groups::kRowsForFarPanels;
  void widen(int64_t n, int64_t begin, int64_t end, int64_t step, float* to) const {
    constexpr int64_t kVectors = Groups::kColumns / kDotLanes;
    static_assert(kPartColumns % Groups::kColumns == 0);
    for (int64_t v = begin, g = begin / kVectors; v < end; v += kVectors, ++g) {
      Groups opened;
      opened.open(data + n * row_bytes + g * Groups::kBytes,
                  scales + n * row_scales + g * Groups::kScaleBytes);
      fetch_lines<1>(data + n * row_bytes + g * Groups::kBytes + FetchFar::kAhead);
      if ((v + kVectors) * kDotLanes <= K) {
        HWY_UNROLL(16)
        for (int64_t i = 0; i < kVectors; ++i, to += step) {
          hn::StoreU(opened.vector(i), DotFloats(), to);
        }
      } else {
        for (int64_t i = 0; v + i < end; ++i, to += step) {
          const int64_t columns = K - (v + i) * kDotLanes;
          const auto there =
              hn::FirstN(DotFloats(), static_cast<size_t>(std::min(columns, kDotLanes)));
          hn::StoreU(hn::IfThenElseZero(there, opened.vector(i)), DotFloats(), to);
        }
      }
    }
  }

  const std::byte *data, *scales;
  int64_t N, K, row_bytes, row_scales;
};

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard by target
