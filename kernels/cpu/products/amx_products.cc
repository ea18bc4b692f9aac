// Products of x in fp32 or bf16 with weights in bf16, on AMX.
//
// Of x in fp32 a sum takes, for 32 columns after the other, the products of its last parts, of the
// middle ones and of the upper ones. x in bf16 is rounded to nearest, and is one such part.
//
// Weights are read as they lie, output by output: they are what the instruction calls the first
// matrix, and its sums have a row for each output. x is the second one, whose rows hold pairs of
// columns: so rows of x lie together, see split_rows().
#include <hwy/base.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/ceil_div.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/products/narrow_products.h"
#include "kernels/cpu/targets.h"
#include "kernels/weight_format.h"

// After the choice of instruction sets.
#include "kernels/cpu/products/where_possible.h"

#if HWY_ARCH_X86_64 && (HWY_ATTAINABLE_TARGETS & HWY_AVX3) && defined(__linux__)
HWY_PUSH_ATTRIBUTES("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,f16c,bmi,bmi2,amx-tile,amx-bf16")
#include "kernels/cpu/products/amx.h"

namespace recurve::cpu {
namespace {

using namespace amx;

template <int PARTS>
int64_t row_bytes(int64_t K) {
  return ceil_div(K, kColumns) * PARTS * kPairs * kPairBytes;
}

// A single row of x as split_rows() makes it.
template <int PARTS>
void split_row(const float* x, int64_t K, std::byte* to) {
  for (int64_t k = 0; k < K; k += kColumns) {
    const Parts<PARTS> first(load(x + k, K - k)), second(load(x + k + kLanes, K - k - kLanes));
    HWY_UNROLL(3)
    for (int part = 0; part < PARTS; ++part, to += kPairs * kPairBytes) {
      _mm512_storeu_si512(to, upper_halves(first.of[part], second.of[part]));
    }
  }
}

// Up to kRows rows of x: for every 32 columns and each part, the upper one first, kPairs times a
// pair of columns of each row. (K / kColumns, PARTS, kPairs, rows, 2) in bf16, and zeros where a
// row has no more columns.
template <int PARTS>
void split_rows(const float* x, int64_t K, int64_t rows, std::byte* to) {
  if (rows == 1) return split_row<PARTS>(x, K, to);
  const auto some = static_cast<__mmask16>((1u << rows) - 1);
  const __m512i halves = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  for (int64_t k = 0; k < K; k += kColumns) {
    for (int64_t half = 0; half < kColumns; half += kLanes, to += kPairs / 2 * rows * kPairBytes) {
      Vectors columns;  // of the rows
      for (int64_t row = 0; row < kRows; ++row) {
        columns[row] = row < rows ? _mm512_castps_si512(load(x + row * K + k + half, K - k - half))
                                  : _mm512_setzero_si512();
      }
      avx512::transpose(columns);
      HWY_UNROLL(8)
      for (int64_t pair = 0; pair < kPairs / 2; ++pair) {
        const Parts<PARTS> even(_mm512_castsi512_ps(columns[2 * pair]));
        const Parts<PARTS> odd(_mm512_castsi512_ps(columns[2 * pair + 1]));
        HWY_UNROLL(3)
        for (int part = 0; part < PARTS; ++part) {
          constexpr int kChosen = 0xd8;  // of each bit the second's where the third one is set
          const __m512i words = _mm512_ternarylogic_epi32(_mm512_srli_epi32(even.of[part], 16),
                                                          odd.of[part], halves, kChosen);
          _mm512_mask_storeu_epi32(to + (part * kPairs + pair) * rows * kPairBytes, some, words);
        }
      }
    }
    to += (PARTS - 1) * kPairs * rows * kPairBytes;
  }
}

// The tile registers: of one or two tiles of rows, x in its parts, with a tile of weights after the
// other, gives sums.
constexpr int kSums = 0, kX = 4, kWeights = 7;
constexpr int kMostSums = 4;

// With x in one part a second tile of rows spares loads of weights; in three it is the parts that
// do.
template <int PARTS>
constexpr int kRowTiles = PARTS == 1 ? 2 : 1;
template <int PARTS>
constexpr int kOutputTiles = kMostSums / kRowTiles<PARTS>;

// Calls body<0>() to body<COUNT - 1>().
template <int COUNT, typename Body>
HWY_INLINE void for_each(const Body& body) {
  body.template operator()<0>();
  if constexpr (COUNT > 1) body.template operator()<1>();
  if constexpr (COUNT > 2) body.template operator()<2>();
  if constexpr (COUNT > 3) body.template operator()<3>();
}

// How many outputs every tile of weights has, and how many rows the tiles of rows.
struct Shape {
  int64_t outputs = 0;
  std::array<int64_t, 2> rows = {};
  bool operator==(const Shape&) const = default;
};

// Tiles of x: of each of the rows all parts. Tiles of sums: of each of the outputs all rows.
template <int PARTS, int ROW_TILES>
void configure(const Shape& shape) {
  TileConfig config;
  config.set(kWeights, shape.outputs, kPairs);
  for (int x = 0; x < PARTS * ROW_TILES; ++x) config.set(kX + x, kPairs, shape.rows[x / PARTS]);
  for (int sum = 0; sum < kMostSums; ++sum) {
    config.set(kSums + sum, shape.outputs, shape.rows[sum % ROW_TILES]);
  }
  config.use();
}

// Weights of the first tile: `data` is the first column of the first output.
struct WeightTiles {
  const std::byte* data;
  int64_t stride;  // bytes from one output to the next
};

// Adds the products of 32 columns to the sums. x: of these columns, of every tile of rows. A tile
// is loaded just before it is first multiplied, so that others are multiplied while it is on its
// way.
template <int PARTS, int ROW_TILES, int OUTPUT_TILES>
HWY_INLINE void add_columns(const WeightTiles& w, const std::byte* const (&x)[2],
                            const Shape& shape) {
  for_each<OUTPUT_TILES>([&]<int OUTPUT>() {
    load_tile<kWeights>(w.data + OUTPUT * kOutputs * w.stride, w.stride);
    for_each<ROW_TILES>([&]<int ROW>() {
      const int64_t pair_bytes = shape.rows[ROW] * kPairBytes;
      for_each<PARTS>([&]<int I>() {
        constexpr int kPart = PARTS - 1 - I, kTile = kX + ROW * PARTS + kPart;
        if constexpr (OUTPUT == 0)
          load_tile<kTile>(x[ROW] + kPart * kPairs * pair_bytes, pair_bytes);
        add_products<kSums + OUTPUT * ROW_TILES + ROW, kWeights, kTile>();
      });
    });
  });
}

// Sums that have left their registers and go into y, four rows of a tile at a time, while the next
// ones are made: what multiplies tiles works concurrently with what turns them over, and y, which
// comes from far, is not waited for.
template <int PARTS>
class StoredTiles {
 public:
  // Of the outputs from n on and the rows from `row` on.
  template <int ROW_TILES, int OUTPUT_TILES>
  void store(const Shape& shape, int64_t row, int64_t n) {
    for_each<ROW_TILES * OUTPUT_TILES>([&]<int SUM>() {
      // A single row's lie one after the other.
      store_tile<kSums + SUM>(sums_[SUM], shape.rows[SUM % ROW_TILES] == 1 ? kPairBytes : kLine);
    });
    shape_ = shape;
    row_ = row;
    n_ = n;
    row_tiles_ = ROW_TILES;
    tiles_ = ROW_TILES * OUTPUT_TILES;
    next_ = -kStepsToCache;
    end_ = tiles_ * ceil_div(shape.rows[0], kTogether);
  }
  // Some of those that were stored, if there still are any, and if they have reached the cache.
  void finish_next(const LinearArgs& a) {
    if (next_ >= end_) return;
    if (next_ >= 0) finish(a, next_ / tiles_ * kTogether, next_ % tiles_);
    ++next_;
  }
  void finish_all(const LinearArgs& a) {
    while (next_ < end_) finish_next(a);
  }

 private:
  static constexpr int64_t kTogether = 4;
  static constexpr int kStepsToCache = 2;

  // Whether there is one among them that is not finite, or they are so large that a sum is not.
  static bool maybe_not_finite(const __m512 (&of)[kTogether]) {
    const __m512 sum = _mm512_add_ps(_mm512_add_ps(of[0], of[1]), _mm512_add_ps(of[2], of[3]));
    return _mm512_fpclass_ps_mask(sum, kNotFinite) != 0;
  }

  // Of four rows of a tile, from its `row` on.
  void finish(const LinearArgs& a, int64_t row, int64_t tile) {
    const int64_t row_tile = tile % row_tiles_, in_tile = shape_.rows[row_tile];
    const int64_t rows = std::min(in_tile - row, kTogether);
    if (rows <= 0) return;
    const auto* sums = reinterpret_cast<const float*>(sums_[tile]);  // (outputs, rows)
    const int64_t first = row_ + row_tile * kRows + row, n = n_ + tile / row_tiles_ * kOutputs;
    __m512 of[kTogether];
    if (in_tile == 1) {
      of[0] = _mm512_loadu_ps(sums);
    } else {
      avx512::transpose_columns(sums + row, of);
    }
    if (rows == kTogether && shape_.outputs == kOutputs && !(PARTS > 1 && maybe_not_finite(of))) {
      HWY_UNROLL(4)
      for (int64_t r = 0; r < kTogether; ++r) finish_row(a, first + r, n, of[r]);
    } else {
      for (int64_t r = 0; r < rows; ++r) {
        finish_row<(PARTS > 1)>(a, first + r, n, shape_.outputs, of[r]);
      }
    }
  }

  Vectors sums_[kMostSums];
  Shape shape_ = {};
  int64_t row_ = 0, n_ = 0;
  int64_t row_tiles_ = 1, tiles_ = 1;  // in the first dimension, and all
  int64_t next_ = 0, end_ = 0;         // fours of rows, and of each all tiles
};

// Products of a block's rows, which stay in the second cache, with weights that pass by.
template <int PARTS>
class Block {
 public:
  // split: all rows, as split_rows() makes them. The rows [row_begin, row_end).
  Block(const LinearArgs& a, const std::byte* split, int64_t row_begin, int64_t row_end)
      : a_(a), split_(split), row_begin_(row_begin), row_end_(row_end) {}
  ~Block() {
    stored_.finish_all(a_);
    release_tiles();
  }

  // The outputs [begin, end).
  void multiply(int64_t begin, int64_t end) {
    // With one tile of rows more than one of outputs spare little, and their weights come in an
    // order that is further from that of memory.
    const int64_t most = row_end_ - row_begin_ > kRows ? kOutputTiles<PARTS> : 1;
    while (begin < end) {
      const int64_t tiles = std::min((end - begin) / kOutputs, most);
      if constexpr (kOutputTiles<PARTS> == 4) {
        if (tiles == 4) panel<4>(kOutputs, begin);
        if (tiles == 3) panel<3>(kOutputs, begin);
      }
      if (tiles == 2) panel<2>(kOutputs, begin);
      if (tiles <= 1) panel<1>(std::min(end - begin, kOutputs), begin);
      begin += std::max<int64_t>(tiles, 1) * kOutputs;
    }
  }

 private:
  // Weights of a panel: those of whole tiles as they lie, and the columns that are left after
  // them, with zeros behind.
  template <int OUTPUT_TILES>
  struct Panel {
    WeightTiles whole;
    alignas(64) std::byte rest[OUTPUT_TILES * kOutputs][2 * kColumns] = {};
    const std::byte* after;  // what is fetched next, of what follows in memory
    int64_t lines;           // of it for every 32 columns
  };

  // So many tiles of outputs from n on, and of each so many outputs. What comes next in memory is
  // fetched meanwhile.
  template <int OUTPUT_TILES>
  void panel(int64_t outputs, int64_t n) {
    constexpr int64_t kStep = kRowTiles<PARTS> * kRows;
    const int64_t K = a_.W.K, stride = 2 * K, row_steps = ceil_div(row_end_ - row_begin_, kStep);
    Panel<OUTPUT_TILES> p;
    p.whole = {static_cast<const std::byte*>(a_.W.data) + n * stride, stride};
    for (int64_t j = 0; K % kColumns > 0 && j < (OUTPUT_TILES - 1) * kOutputs + outputs; ++j) {
      const int64_t rest = K % kColumns;
      std::memcpy(p.rest[j], p.whole.data + j * stride + 2 * (K - rest), 2 * rest);
    }
    p.after = p.whole.data + OUTPUT_TILES * kOutputs * stride;
    p.lines = ceil_div(OUTPUT_TILES * kOutputs, row_steps);
    for (int64_t row = row_begin_; row < row_end_; row += kStep) {
      const int64_t rest = row_end_ - row, second = std::clamp<int64_t>(rest - kRows, 0, kRows);
      if (kRowTiles<PARTS> == 1 || second == 0) {
        tiles<1>(p, {outputs, {std::min(rest, kRows), 0}}, row, n);
      } else {
        tiles<kRowTiles<PARTS>>(p, {outputs, {kRows, second}}, row, n);
      }
    }
  }

  template <int ROW_TILES, int OUTPUT_TILES>
  void tiles(Panel<OUTPUT_TILES>& p, const Shape& shape, int64_t row, int64_t n) {
    if (shape != configured_) configure<PARTS, ROW_TILES>(configured_ = shape);
    const int64_t K = a_.W.K, tile_bytes = kRows * row_bytes<PARTS>(K);
    const std::byte* x[2] = {split_ + row / kRows * tile_bytes,
                             split_ + (row / kRows + 1) * tile_bytes};
    WeightTiles w = p.whole;
    for_each<ROW_TILES * OUTPUT_TILES>([]<int SUM>() { clear_tile<kSums + SUM>(); });
    for (int64_t k = 0; k + kColumns <= K; k += kColumns) {
      for (int64_t line = 0; line < p.lines; ++line, p.after += kLine) fetch_lines<1>(p.after);
      add_columns<PARTS, ROW_TILES, OUTPUT_TILES>(w, x, shape);
      w.data += 2 * kColumns;
      for (int r = 0; r < ROW_TILES; ++r) x[r] += PARTS * kPairs * kPairBytes * shape.rows[r];
      stored_.finish_next(a_);
    }
    if (K % kColumns > 0) {
      add_columns<PARTS, ROW_TILES, OUTPUT_TILES>({p.rest[0], 2 * kColumns}, x, shape);
    }
    stored_.finish_all(a_);
    stored_.template store<ROW_TILES, OUTPUT_TILES>(shape, row, n);
  }

  const LinearArgs& a_;
  const std::byte* const split_;
  const int64_t row_begin_, row_end_;
  Shape configured_;
  StoredTiles<PARTS> stored_;
};

template <int PARTS>
void amx_block(const LinearArgs& a, const std::byte* split, int64_t row_begin, int64_t row_end,
               int64_t begin, int64_t end) {
  Block<PARTS>(a, split, row_begin, row_end).multiply(begin, end);
}

template <int PARTS>
constexpr LinearProducts kAmxProducts{.block = amx_block<PARTS>,
                                      .outputs = kOutputTiles<PARTS> * kOutputs,
                                      .rows = kRows,
                                      .cache_bytes = 1200 * 1024,  // of 2 MB
                                      .rows_stay = true,
                                      .rounded_bytes = row_bytes<PARTS>,
                                      .round = split_rows<PARTS>};

}  // namespace
}  // namespace recurve::cpu
HWY_POP_ATTRIBUTES

namespace recurve::cpu {

const LinearProducts* amx_f32_products() { return where_possible(kAmxProducts<3>, amx::has_amx()); }
const LinearProducts* amx_bf16_products() {
  return where_possible(kAmxProducts<1>, amx::has_amx());
}

}  // namespace recurve::cpu

#else

namespace recurve::cpu {

const LinearProducts* amx_f32_products() { return nullptr; }
const LinearProducts* amx_bf16_products() { return nullptr; }

}  // namespace recurve::cpu

#endif
