// Products of a linear layer whose matrix stands column by column (Matrix::transposed), compiled
// once for each instruction set. Every sum takes its products from the first column to the last, in
// one chain, so it does not depend on the tile that it was computed in. A product with an x of zero
// changes no sum, as weights are finite: where x is zero in all rows of a tile, the column is not
// read.
//
// Few rows walk the columns of their outputs from memory, some at a time, so that sums wait in the
// first cache. Of many rows hardly a column is zero in all: they share columns that are widened to
// fp32 once, and sums of a tile stay in registers.
//
// What a format brings is a class, whose values are those of WeightFormat::unpack:
//
//   struct Columns {
//     static constexpr int64_t kGroup;  // columns that share scales
//     // Outputs whose values share bytes. Of a column they are kVectors vectors for each vector's
//     // bytes, of outputs kApart apart.
//     static constexpr int64_t kStrip, kVectors, kApart;
//     static constexpr int64_t kOfLine;  // outputs of a line
//     using Value;                       // as which the bytes are read
//     explicit Columns(const Matrix& W);
//     const Value* at(int64_t k, int64_t n) const;  // column k, from a strip's first output on
//     static int64_t offset(int64_t n);             // from there, those of output n
//     // What load() needs of the group of column k for the outputs from n on. D: a vector of
//     // floats; or OneFloat, if there need not be whole strips.
//     template <class D> auto scales(D d, int64_t k, int64_t n) const;
//     template <class D> static void load(D d, const Value* from, const auto& scales, Vec<D>* w);
//   };
#if defined(RECURVE_CPU_TRANSPOSED_BLOCK_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef RECURVE_CPU_TRANSPOSED_BLOCK_INL_H
#undef RECURVE_CPU_TRANSPOSED_BLOCK_INL_H
#else
#define RECURVE_CPU_TRANSPOSED_BLOCK_INL_H
#endif

#include <algorithm>

#include "kernels/ceil_div.h"
#include "kernels/cpu/aligned_memory.h"
#include "kernels/cpu/linear/linear_panel-inl.h"
#include "kernels/cpu/vector_math-inl.h"
#include "kernels/weight_format.h"

HWY_BEFORE_NAMESPACE();
namespace recurve::cpu::HWY_NAMESPACE {

inline constexpr int kFewRows = 4;                   // of a tile that walks columns
inline constexpr int64_t kRowsForWidening = 96;      // from so many rows on columns are widened
inline constexpr int64_t kWalkedBytes = 512 * 1024;  // of columns, that several tiles read
inline constexpr int64_t kColumnsAhead = 16;         // that are asked for before they are read
inline constexpr int64_t kWidenedColumns = 128, kWidenedRows = 160;  // at once
inline constexpr int64_t kStripOutputs = kPanelOutputs * kDotLanes;  // of a tile of many rows

// Of this thread, for the sums of a block.
inline AlignedMemory& transposed_memory() {
  static thread_local AlignedMemory memory;
  return memory;
}

// Columns that are added at once to the sums of so many rows, as registers hold their x.
#if HWY_TARGET == HWY_AVX2
inline constexpr int kHeldFactors = 8;
#else
inline constexpr int kHeldFactors = 16;
#endif
template <int ROWS>
inline constexpr int kColumnsAtOnce = 8 * ROWS <= kHeldFactors   ? 8
                                      : 4 * ROWS <= kHeldFactors ? 4
                                                                 : 2;

// F32 or BF16.
template <typename T>
struct PlainColumns {
  static constexpr int64_t kGroup = int64_t{1} << 62;  // there are no scales
  static constexpr int64_t kStrip = kDotLanes, kVectors = 1, kApart = 0;
  static constexpr int64_t kOfLine = kLine / int64_t{sizeof(T)};
  using Value = T;
  explicit PlainColumns(const Matrix& W) : data(static_cast<const T*>(W.data)), N(W.N) {}

  const T* at(int64_t k, int64_t n) const { return data + k * N + n; }
  static int64_t offset(int64_t n) { return n; }
  struct NoScales {};
  template <class D>
  HWY_INLINE NoScales scales(D, int64_t, int64_t) const {
    return {};
  }
  template <class D>
  HWY_INLINE static void load(D d, const T* from, NoScales, hn::Vec<D>* w) {
    *w = load_lanes(d, from);
  }

  const T* data;
  int64_t N;
};

// Outputs that a tile of many rows widens at once, and ranges of outputs begin at multiples of.
template <class Columns>
inline constexpr int64_t kBlockOutputs = std::max(kStripOutputs, Columns::kStrip);

template <class Columns>
int64_t whole_blocks(int64_t outputs) {
  return ceil_div(outputs, kBlockOutputs<Columns>) * kBlockOutputs<Columns>;
}

// add(d, n) for the outputs [begin, end), which are whole strips unless single ones can be added: n
// is the first of kVectors vectors, or one output.
template <class Columns, class Add>
HWY_INLINE void for_strips(int64_t begin, int64_t end, const Add& add) {
  int64_t n = begin;
  for (; n + Columns::kStrip <= end; n += Columns::kStrip) {
    HWY_UNROLL(8)
    for (int64_t i = 0; i < Columns::kStrip / Columns::kVectors; i += kDotLanes) {
      add(DotFloats(), n + i);
    }
  }
  if constexpr (Columns::kVectors == 1) {
    for (; n < end; ++n) add(OneFloat(), n);
  }
}

// sums[r][n] += sum over c of factors[c][r] w[c][n], for n in [0, outputs), of columns of one
// group, that of column k. w: from the output `begin` on. sums: (ROWS, step). next: columns of
// which the same outputs are read soon.
template <class Columns, int ROWS, int COLUMNS>
HWY_INLINE void add_columns(const Columns& W, int64_t k, int64_t begin,
                            const float (&factors)[COLUMNS][ROWS],
                            const typename Columns::Value* const (&w)[COLUMNS],
                            const typename Columns::Value* const (&next)[COLUMNS], int64_t outputs,
                            float* sums, int64_t step) {
  const auto add = [&](auto d, int64_t n) HWY_ATTR {
    using Vector = hn::Vec<decltype(d)>;
    constexpr int64_t kVectors = Columns::kVectors, kApart = Columns::kApart;
    Vector sum[ROWS][kVectors];
    HWY_UNROLL(8)
    for (int r = 0; r < ROWS; ++r) {
      HWY_UNROLL(2)
      for (int64_t v = 0; v < kVectors; ++v) {
        sum[r][v] = hn::LoadU(d, sums + r * step + n + v * kApart);
      }
    }
    const auto scales = W.scales(d, k, begin + n);
    HWY_UNROLL(8)
    for (int c = 0; c < COLUMNS; ++c) {
      Vector weights[kVectors];
      Columns::load(d, w[c] + Columns::offset(n), scales, weights);
      HWY_UNROLL(8)
      for (int r = 0; r < ROWS; ++r) {
        const Vector factor = hn::Set(d, factors[c][r]);
        HWY_UNROLL(2)
        for (int64_t v = 0; v < kVectors; ++v) {
          sum[r][v] = hn::MulAdd(factor, weights[v], sum[r][v]);
        }
      }
    }
    HWY_UNROLL(8)
    for (int r = 0; r < ROWS; ++r) {
      HWY_UNROLL(2)
      for (int64_t v = 0; v < kVectors; ++v) {
        hn::StoreU(sum[r][v], d, sums + r * step + n + v * kApart);
      }
    }
  };
  constexpr int64_t kOfLine = std::max(Columns::kOfLine, Columns::kStrip);
  int64_t n = 0;
  for (; n + kOfLine <= outputs; n += kOfLine) {
    HWY_UNROLL(8)
    for (int c = 0; c < COLUMNS; ++c) {
      __builtin_prefetch(next[c] + Columns::offset(n), 0, FetchNear::kLocality);
    }
    for_strips<Columns>(n, n + kOfLine, add);
  }
  for_strips<Columns>(n, outputs, add);
}

// Of the columns [first, last) those in which x of some row is not zero, ascending. to: as many and
// a vector more. Returns how many.
template <int ROWS>
int64_t columns_of(const float* const (&x)[ROWS], int64_t first, int64_t last, int32_t* to) {
  const DotFloats d;
  const hn::RebindToSigned<DotFloats> ints;
  const auto zero = hn::Zero(d);
  int64_t count = 0, k = first;
  for (; k + kDotLanes <= last; k += kDotLanes) {
    auto zeros = hn::Eq(hn::LoadU(d, x[0] + k), zero);  // not where it is NaN
    HWY_UNROLL(4)
    for (int r = 1; r < ROWS; ++r) zeros = hn::And(zeros, hn::Eq(hn::LoadU(d, x[r] + k), zero));
    const auto some = hn::RebindMask(ints, hn::Not(zeros));
    const auto at = hn::Iota(ints, static_cast<int32_t>(k));
    count += static_cast<int64_t>(hn::CompressStore(at, some, ints, to + count));
  }
  for (; k < last; ++k) {
    bool all_zero = true;
    for (int r = 0; r < ROWS; ++r) all_zero &= x[r][k] == 0;
    if (!all_zero) to[count++] = static_cast<int32_t>(k);
  }
  return count;
}

// Floats, or numbers of columns, that a walk keeps.
template <class Columns>
int64_t floats_of_walk(int64_t K, int64_t rows, int64_t outputs) {
  return rows * whole_blocks<Columns>(outputs) + K + kDotLanes;
}

// add.operator()<COLUMNS>(at) for as many columns as `fits` allows from there on: MOST, half of
// them, a quarter, ..., or one. Returns how many.
template <int MOST, class Fits, class Add>
HWY_INLINE int64_t add_some(int64_t at, const Fits& fits, const Add& add) {
  if constexpr (MOST > 1) {
    if (!fits(at, MOST)) return add_some<MOST / 2>(at, fits, add);
  }
  add.template operator()<MOST>(at);
  return MOST;
}

// Adds the products of the columns [first, last) to the sums of ROWS rows and of the outputs from
// `begin` on. columns: memory for their numbers.
template <int ROWS, class Columns>
void walk_columns(const LinearArgs& a, int64_t row, int64_t first, int64_t last, int64_t begin,
                  int64_t outputs, float* sums, int64_t step, int32_t* columns) {
  using Value = typename Columns::Value;
  const Columns W(a.W);
  const float* x[ROWS];
  for (int r = 0; r < ROWS; ++r) x[r] = a.x + (row + r) * a.W.K;
  const int64_t count = columns_of(x, first, last, columns);
  const auto add = [&]<int COLUMNS>(int64_t at) HWY_ATTR {
    const Value *w[COLUMNS], *next[COLUMNS];
    float factors[COLUMNS][ROWS];
    for (int c = 0; c < COLUMNS; ++c) {
      for (int r = 0; r < ROWS; ++r) factors[c][r] = x[r][columns[at + c]];
      w[c] = W.at(columns[at + c], begin);
      next[c] = W.at(columns[std::min(at + c + kColumnsAhead, count - 1)], begin);
    }
    add_columns(W, columns[at], begin, factors, w, next, outputs, sums, step);
  };
  const auto in_one_group = [&](int64_t at, int64_t some) {
    return at + some <= count &&
           columns[at] / Columns::kGroup == columns[at + some - 1] / Columns::kGroup;
  };
  for (int64_t c = 0; c < count;) c += add_some<kColumnsAtOnce<ROWS>>(c, in_one_group, add);
}

// Where there are several tiles of rows, so many columns at a time stay in the second cache for
// them.
template <class Columns>
void walk_block(const LinearArgs& a, const std::byte*, int64_t row_begin, int64_t row_end,
                int64_t begin, int64_t end) {
  const int64_t K = a.W.K, rows = row_end - row_begin, outputs = end - begin;
  const int64_t step = whole_blocks<Columns>(outputs);
  constexpr int64_t kTogether = 64;  // columns, of one group
  const int64_t fitting = kWalkedBytes / format_of(a.W).column_bytes(outputs);
  const int64_t at_once =
      rows <= kFewRows ? K : std::max<int64_t>(fitting / kTogether, 1) * kTogether;
  float* const sums = transposed_memory().reserve<float>(floats_of_walk<Columns>(K, rows, outputs));
  auto* const columns = reinterpret_cast<int32_t*>(sums + rows * step);
  std::fill_n(sums, rows * step, 0.0f);
  for (int64_t k = 0; k < K; k += at_once) {
    for_row_tiles<kFewRows>(0, rows, kFewRows, [&]<int ROWS>(int64_t row) HWY_ATTR {
      walk_columns<ROWS, Columns>(a, row_begin + row, k, std::min(k + at_once, K), begin, outputs,
                                  sums + row * step, step, columns);
    });
  }
  for (int64_t r = 0; r < rows; ++r) {
    finish_outputs(a, row_begin + r, begin, outputs, sums + r * step);
  }
}

// Columns [first, last) of the outputs from n on, as many as a block has, in fp32: those that there
// are not are zeros. to: (last - first, kBlockOutputs)
template <class Columns>
void widen_columns(const Columns& W, int64_t N, int64_t n, int64_t first, int64_t last, float* to) {
  const int64_t outputs = std::min(kBlockOutputs<Columns>, N - n);
  for (int64_t k = first; k < last; ++k, to += kBlockOutputs<Columns>) {
    const auto* const from = W.at(k, n);
    for_strips<Columns>(0, outputs, [&](auto d, int64_t j) HWY_ATTR {
      hn::Vec<decltype(d)> weights[Columns::kVectors];
      Columns::load(d, from + Columns::offset(j), W.scales(d, k, n + j), weights);
      HWY_UNROLL(2)
      for (int64_t v = 0; v < Columns::kVectors; ++v) {
        hn::StoreU(weights[v], d, to + j + v * Columns::kApart);
      }
    });
    std::fill(to + outputs, to + kBlockOutputs<Columns>, 0.0f);
  }
}

// sums += x w over so many columns, `apart` floats from one to the next, for ROWS rows and a strip
// of outputs. x: the first column of each row. sums: (ROWS, step)
template <int ROWS>
HWY_INLINE void add_widened(const float* const (&x)[ROWS], const float* w, int64_t columns,
                            int64_t apart, float* sums, int64_t step) {
  const DotFloats d;
  DotVector sum[ROWS][kPanelOutputs];
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) {
    HWY_UNROLL(4)
    for (int j = 0; j < kPanelOutputs; ++j) {
      sum[r][j] = hn::LoadU(d, sums + r * step + j * kDotLanes);
    }
  }
  for (int64_t k = 0; k < columns; ++k, w += apart) {
    DotVector ws[kPanelOutputs];
    HWY_UNROLL(4)
    for (int j = 0; j < kPanelOutputs; ++j) {
      ws[j] = hn::LoadU(d, w + j * kDotLanes);
      keep_in_register(ws[j]);
    }
    HWY_UNROLL(8)
    for (int r = 0; r < ROWS; ++r) {
      DotVector xs = hn::Set(d, x[r][k]);
      keep_in_register(xs);
      HWY_UNROLL(4)
      for (int j = 0; j < kPanelOutputs; ++j) sum[r][j] = hn::MulAdd(xs, ws[j], sum[r][j]);
    }
  }
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) {
    HWY_UNROLL(4)
    for (int j = 0; j < kPanelOutputs; ++j) {
      hn::StoreU(sum[r][j], d, sums + r * step + j * kDotLanes);
    }
  }
}

template <class Columns>
int64_t floats_of_widening(int64_t rows, int64_t outputs) {
  return std::min(rows, kWidenedRows) * whole_blocks<Columns>(outputs) +
         kWidenedColumns * kBlockOutputs<Columns>;
}

// Rows [row_begin, row_begin + rows), at most kWidenedRows: so many columns of them stay in the
// second cache while outputs pass by.
template <class Columns>
void multiply_widened(const LinearArgs& a, int64_t row_begin, int64_t rows, int64_t begin,
                      int64_t end) {
  constexpr int64_t kOutputs = kBlockOutputs<Columns>;
  const Columns W(a.W);
  const int64_t K = a.W.K, step = whole_blocks<Columns>(end - begin);
  float* const sums =
      transposed_memory().reserve<float>(floats_of_widening<Columns>(rows, end - begin));
  float* const widened = sums + rows * step;
  std::fill_n(sums, rows * step, 0.0f);
  for (int64_t k = 0; k < K; k += kWidenedColumns) {
    const int64_t columns = std::min(kWidenedColumns, K - k);
    for (int64_t n = begin; n < end; n += kOutputs) {
      widen_columns(W, a.W.N, n, k, k + columns, widened);
      for_row_tiles<kPanelRows>(0, rows, kPanelRows, [&]<int ROWS>(int64_t row) HWY_ATTR {
        const float* x[ROWS];
        for (int r = 0; r < ROWS; ++r) x[r] = a.x + (row_begin + row + r) * K + k;
        for (int64_t j = 0; j < kOutputs; j += kStripOutputs) {
          add_widened<ROWS>(x, widened + j, columns, kOutputs, sums + row * step + n - begin + j,
                            step);
        }
      });
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    finish_outputs(a, row_begin + r, begin, end - begin, sums + r * step);
  }
}

template <class Columns>
void widened_block(const LinearArgs& a, const std::byte*, int64_t row_begin, int64_t row_end,
                   int64_t begin, int64_t end) {
  const int64_t rows = row_end - row_begin, parts = ceil_div(rows, kWidenedRows);
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first = rows * part / parts, last = rows * (part + 1) / parts;
    multiply_widened<Columns>(a, row_begin + first, last - first, begin, end);
  }
}

// How these rows are multiplied: a row has the same bits in both ways.
template <class Columns>
LinearProducts transposed_products_for(const LinearArgs& args) {
  LinearProducts products{
      .block = widened_block<Columns>,
      .outputs = kBlockOutputs<Columns>,
      .rows = kWidenedRows,
      .cache_bytes = 512,  // outputs of a task at most
      .weight_bytes = [](int64_t) { return int64_t{1}; },
      .block_scratch =
          [](int64_t, int64_t rows, int64_t outputs) {
            return sizeof(float) * static_cast<size_t>(floats_of_widening<Columns>(rows, outputs));
          }};
  if (args.rows >= kRowsForWidening) return products;
  products.block = walk_block<Columns>;
  products.rows = 1;
  products.tasks = 1;  // long pieces of columns come faster
  products.block_scratch = [](int64_t K, int64_t rows, int64_t outputs) {
    return sizeof(float) * static_cast<size_t>(floats_of_walk<Columns>(K, rows, outputs));
  };
  return products;
}

}  // namespace recurve::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard by target
