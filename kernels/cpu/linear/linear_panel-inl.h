// Products of a linear layer for many rows, compiled once for each instruction set: weights are
// widened to fp32 once for all of them, into panels that stay in the second cache, in the order in
// which tiles read them (Goto and van de Geijn, "Anatomy of High-Performance Matrix
// Multiplication", 2008). Every sum is that of dot_tile-inl.h, to the bit: where the columns end
// that stay in the first cache, sums of lanes wait in memory for the next.
//
// How weights are read is a class of the format, in addition to what linear_block-inl.h asks of it:
//
//   // Vectors [begin, end) of the values of output n: vector v goes to `to` + (v - begin) * step.
//   // Columns from K on are zeros. `begin` is a multiple of kPartColumns / kDotLanes.
//   void widen(int64_t n, int64_t begin, int64_t end, int64_t step, float* to) const;
//   // From so many rows on panels are faster: of a matrix in a cache, and of one that comes from
//   // memory, where a panel's weights are waited for before they are used.
//   static constexpr int kRowsForPanels, kRowsForFarPanels;
#if defined(RECURVE_CPU_LINEAR_PANEL_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef RECURVE_CPU_LINEAR_PANEL_INL_H
#undef RECURVE_CPU_LINEAR_PANEL_INL_H
#else
#define RECURVE_CPU_LINEAR_PANEL_INL_H
#endif

#include <algorithm>

#include "kernels/ceil_div.h"
#include "kernels/cpu/aligned_memory.h"
#include "kernels/cpu/linear/linear_block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

// A tile is so many rows and outputs: their sums, a vector of each output's weights and one of x
// fill the registers. Panels leave as much of the second cache to x.
inline constexpr int kPanelRows = 6;
#if HWY_TARGET == HWY_AVX2
inline constexpr int kPanelOutputs = 2;
inline constexpr int64_t kPanelBytes = 192 * 1024;
#else
inline constexpr int kPanelOutputs = 4;
inline constexpr int64_t kPanelBytes = 384 * 1024;
#endif

// Columns of a panel at most, so that it has outputs.
inline constexpr int64_t kPartColumns = 4096;
// Columns of a tile's rows that stay in the first cache while weights pass by: all of them where
// they are few enough, else so many at a time.
inline constexpr int64_t kFewColumns = 1024, kCachedColumns = 512;

inline int64_t panel_bytes_of_output(int64_t K) {
  return ceil_div(std::min(K, kPartColumns), kDotLanes) * kDotLanes * int64_t{sizeof(float)};
}

// sum[r][n] += x_r . w_n for so many vectors of columns. w: (vectors, kPanelOutputs, kDotLanes)
template <int ROWS>
HWY_INLINE void add_vectors(int64_t vectors, const float* const (&x)[ROWS], const float* w,
                            DotVector (&sum)[ROWS][kPanelOutputs]) {
  const DotFloats d;
  const int64_t columns = vectors * kDotLanes;
  for (int64_t k = 0; k < columns; k += kDotLanes, w += kPanelOutputs * kDotLanes) {
    DotVector ws[kPanelOutputs];
    HWY_UNROLL(4)
    for (int n = 0; n < kPanelOutputs; ++n) {
      ws[n] = hn::LoadU(d, w + n * kDotLanes);
      keep_in_register(ws[n]);
    }
    HWY_UNROLL(8)
    for (int r = 0; r < ROWS; ++r) {
      DotVector xs = hn::LoadU(d, x[r] + k);
      keep_in_register(xs);
      HWY_UNROLL(4)
      for (int n = 0; n < kPanelOutputs; ++n) sum[r][n] = hn::MulAdd(xs, ws[n], sum[r][n]);
    }
  }
}

// The products of some columns of a few rows with all outputs of a panel.
struct PanelStrip {
  int64_t row;              // the first
  int64_t begin, end;       // outputs
  int64_t column, columns;  // the first, and how many
  const float* panel;       // (groups of outputs, vectors of the panel, kPanelOutputs, kDotLanes)
  int64_t panel_step;       // floats from one group of outputs to the next
  float* waiting;  // sums between strips: (groups of outputs, kPanelRows, kPanelOutputs, kDotLanes)
};

template <int ROWS>
void multiply_strip(const LinearArgs& a, const PanelStrip& strip) {
  const DotFloats d;
  const bool is_first = strip.column == 0, is_last = strip.column + strip.columns == a.W.K;
  const int64_t whole = strip.columns / kDotLanes, rest = strip.columns % kDotLanes;
  const float* x[ROWS];
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) x[r] = a.x + (strip.row + r) * a.W.K + strip.column;
  float padded[ROWS][kDotLanes];
  const float* last[ROWS];
  if (rest > 0) pad_columns(whole * kDotLanes, rest, x, padded, last);

  const float* w = strip.panel;
  float* waiting = strip.waiting;
  for (int64_t n = strip.begin; n < strip.end; n += kPanelOutputs, w += strip.panel_step) {
    DotVector sum[ROWS][kPanelOutputs];
    HWY_UNROLL(8)
    for (int r = 0; r < ROWS; ++r) {
      HWY_UNROLL(4)
      for (int j = 0; j < kPanelOutputs; ++j) {
        sum[r][j] =
            is_first ? hn::Zero(d) : hn::LoadU(d, waiting + (r * kPanelOutputs + j) * kDotLanes);
      }
    }
    add_vectors(whole, x, w, sum);
    if (rest > 0) add_vectors(1, last, w + whole * kPanelOutputs * kDotLanes, sum);
    if (is_last) {
      float sums[ROWS][kPanelOutputs];
      store_tile(sum, sums);
      for (int r = 0; r < ROWS; ++r) {
        finish_outputs(a, strip.row + r, n, std::min<int64_t>(kPanelOutputs, strip.end - n),
                       sums[r]);
      }
    } else {
      HWY_UNROLL(8)
      for (int r = 0; r < ROWS; ++r) {
        HWY_UNROLL(4)
        for (int j = 0; j < kPanelOutputs; ++j) {
          hn::StoreU(sum[r][j], d, waiting + (r * kPanelOutputs + j) * kDotLanes);
        }
      }
    }
    waiting += kPanelRows * kPanelOutputs * kDotLanes;
  }
}

// What a block of so many rows and outputs needs: a panel of weights, and the sums of lanes that
// wait, which are those of all tiles of rows where K has several parts, and else of one.
struct PanelSizes {
  PanelSizes(int64_t K, int64_t rows, int64_t outputs)
      : columns(std::min(K, kPartColumns)),
        group_floats(ceil_div(columns, kDotLanes) * kPanelOutputs * kDotLanes),
        groups(std::min(ceil_div(outputs, int64_t{kPanelOutputs}),
                        std::max<int64_t>(kPanelBytes / int64_t{sizeof(float)} / group_floats, 1))),
        tiles(columns < K ? ceil_div(rows, int64_t{kPanelRows}) : 1) {}
  int64_t panel_floats() const { return groups * group_floats; }
  int64_t tile_floats() const { return groups * kPanelOutputs * kPanelRows * kDotLanes; }
  int64_t floats() const { return panel_floats() + tiles * tile_floats(); }

  int64_t columns;       // of a panel
  int64_t group_floats;  // of kPanelOutputs outputs
  int64_t groups, tiles;
};

// Panels of the weights of one block after the other, and the sums that wait.
template <class Weights>
class PanelBlock {
 public:
  PanelBlock(const LinearArgs& a, int64_t row_begin, int64_t row_end)
      : a_(a), weights_(a.W), row_begin_(row_begin), row_end_(row_end) {}

  void multiply(int64_t begin, int64_t end) {
    const PanelSizes sizes(a_.W.K, row_end_ - row_begin_, end - begin);
    const int64_t outputs = sizes.groups * kPanelOutputs;
    static thread_local AlignedMemory memory;
    columns_ = sizes.columns;
    group_floats_ = sizes.group_floats;
    panel_ = memory.reserve<float>(sizes.floats());
    waiting_ = panel_ + sizes.panel_floats();
    waiting_step_ = sizes.tiles > 1 ? sizes.tile_floats() : 0;
    for (int64_t n = begin; n < end; n += outputs) {
      for (int64_t column = 0; column < a_.W.K; column += columns_) {
        multiply_panel(n, std::min(n + outputs, end), column);
      }
    }
  }

 private:
  // Of the outputs [begin, end) the columns of a panel, from `column` on.
  void multiply_panel(int64_t begin, int64_t end, int64_t column) {
    const int64_t columns_end = std::min(column + columns_, a_.W.K);
    fill(begin, end, column / kDotLanes, ceil_div(columns_end, kDotLanes));
    const int64_t strip = a_.W.K <= kFewColumns ? a_.W.K : kCachedColumns;
    float* waiting = waiting_;
    for_row_tiles<kPanelRows>(
        row_begin_, row_end_, kPanelRows, [&]<int ROWS>(int64_t row) HWY_ATTR {
          for (int64_t k = column; k < columns_end; k += strip) {
            multiply_strip<ROWS>(a_, {.row = row,
                                      .begin = begin,
                                      .end = end,
                                      .column = k,
                                      .columns = std::min(strip, columns_end - k),
                                      .panel = panel_ + (k - column) * kPanelOutputs,
                                      .panel_step = group_floats_,
                                      .waiting = waiting});
          }
          waiting += waiting_step_;
        });
  }

  // The panel of the outputs [begin, end): vectors [first, last) of their columns.
  void fill(int64_t begin, int64_t end, int64_t first, int64_t last) {
    float* group = panel_;
    for (int64_t n = begin; n < end; n += kPanelOutputs, group += group_floats_) {
      for (int64_t j = 0; j < kPanelOutputs; ++j) {
        weights_.widen(std::min(n + j, a_.W.N - 1), first, last, kPanelOutputs * kDotLanes,
                       group + j * kDotLanes);
      }
    }
  }

  const LinearArgs& a_;
  const Weights weights_;
  const int64_t row_begin_, row_end_;
  int64_t columns_ = 0, group_floats_ = 0;
  float *panel_ = nullptr, *waiting_ = nullptr;
  int64_t waiting_step_ = 0;  // from the sums of a tile of rows to those of the next
};

template <class Weights>
void panel_block(const LinearArgs& a, const std::byte*, int64_t row_begin, int64_t row_end,
                 int64_t begin, int64_t end) {
  PanelBlock<Weights>(a, row_begin, row_end).multiply(begin, end);
}

inline size_t panel_scratch(int64_t K, int64_t rows, int64_t outputs) {
  return static_cast<size_t>(PanelSizes(K, rows, outputs).floats()) * sizeof(float);
}

template <class Weights>
void plain_block(const LinearArgs& a, const std::byte*, int64_t row_begin, int64_t row_end,
                 int64_t begin, int64_t end) {
  block(a, Weights(a.W), row_begin, row_end, begin, end);
}

// How these rows are multiplied: a row has the same bits in both ways.
template <class Weights>
LinearProducts products_for(const LinearArgs& args) {
  const int rows_for_panels =
      is_far(args, Weights(args.W)) ? Weights::kRowsForFarPanels : Weights::kRowsForPanels;
  if (args.rows < rows_for_panels || args.W.K == 0) return {.block = plain_block<Weights>};
  return {.block = panel_block<Weights>,
          .outputs = kPanelOutputs,
          .cache_bytes = kPanelBytes,
          .weight_bytes = panel_bytes_of_output,
          .block_scratch = panel_scratch};
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard by target
