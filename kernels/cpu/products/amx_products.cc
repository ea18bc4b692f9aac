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

// The tile registers: two tiles of weights with two of x give four of sums.
constexpr int kSums = 0, kWeights = 4, kX = 6;

// How many outputs and rows there are in the two tiles of each, at least one in the first.
struct Shape {
  std::array<int64_t, 2> outputs, rows;
  bool operator==(const Shape&) const = default;
};

void configure(const Shape& shape) {
  TileConfig config;
  for (int o = 0; o < 2; ++o) {
    config.set(kWeights + o, shape.outputs[o], kPairs);
    config.set(kX + o, kPairs, shape.rows[o]);
    for (int r = 0; r < 2; ++r) config.set(kSums + 2 * o + r, shape.outputs[o], shape.rows[r]);
  }
  config.use();
}

// Calls body for each tile of sums.
template <int OUTPUT_TILES, int ROW_TILES, typename Body>
HWY_INLINE void for_sums(const Body& body) {
  body.template operator()<0, 0>();
  if constexpr (ROW_TILES > 1) body.template operator()<0, 1>();
  if constexpr (OUTPUT_TILES > 1) {
    body.template operator()<1, 0>();
    if constexpr (ROW_TILES > 1) body.template operator()<1, 1>();
  }
}

// Weights of a tile: `data` is the first column of the first output.
struct WeightTiles {
  const std::byte* data;
  int64_t stride;  // bytes from one output to the next
};

// Adds the products of 32 columns to the sums. x: of these columns, of both tiles of rows. A tile
// is loaded just before it is first multiplied, so that others are multiplied while it is on its
// way.
template <int PARTS, int OUTPUT_TILES, int ROW_TILES>
HWY_INLINE void add_columns(const WeightTiles& w, const std::byte* const (&x)[2],
                            const Shape& shape) {
  const int64_t first = shape.rows[0] * kPairBytes, second = shape.rows[1] * kPairBytes;
  load_tile<kWeights>(w.data, w.stride);
  HWY_UNROLL(3)
  for (int64_t part = PARTS - 1; part >= 0; --part) {
    load_tile<kX>(x[0] + part * kPairs * first, first);
    add_products<kSums, kWeights, kX>();
    if constexpr (OUTPUT_TILES > 1) {
      if (part == PARTS - 1) {
        load_tile<kWeights + 1>(w.data + kOutputs * w.stride, w.stride);
      }
      add_products<kSums + 2, kWeights + 1, kX>();
    }
    if constexpr (ROW_TILES > 1) {
      load_tile<kX + 1>(x[1] + part * kPairs * second, second);
      add_products<kSums + 1, kWeights, kX + 1>();
      if constexpr (OUTPUT_TILES > 1) add_products<kSums + 3, kWeights + 1, kX + 1>();
    }
  }
}

// The sums of one tile, (outputs, rows), with bias and residual into y.
template <int PARTS>
HWY_INLINE void finish_tile(const LinearArgs& a, int64_t row, int64_t rows, int64_t n,
                            int64_t outputs, Vectors& sums) {
  if (rows > 1) avx512::transpose(sums);
  for (int64_t r = 0; r < rows; ++r) {
    finish_row<(PARTS > 1)>(a, row + r, n, outputs, _mm512_castsi512_ps(sums[r]));
  }
}

// Sums that have left their registers and go into y, tile by tile, while the next ones are made:
// what multiplies tiles works beside what turns them over.
template <int PARTS>
class StoredTiles {
 public:
  // Of the outputs from n on and the rows from `row` on, in the registers that the shape has.
  template <int OUTPUT_TILES, int ROW_TILES>
  void store(const Shape& shape, int64_t row, int64_t n) {
    for_sums<OUTPUT_TILES, ROW_TILES>([&]<int O, int R>() {
      // A single row's lie one after the other.
      store_tile<kSums + 2 * O + R>(sums_[2 * O + R], shape.rows[R] == 1 ? kPairBytes : kLine);
    });
    shape_ = shape;
    row_ = row;
    n_ = n;
    next_ = 0;
  }
  // One of the tiles that were stored, if there is still one.
  void finish_next(const LinearArgs& a) {
    if (next_ == kTiles) return;
    const int o = next_ / 2, r = next_ % 2;
    if (shape_.outputs[o] > 0 && shape_.rows[r] > 0) {
      finish_tile<PARTS>(a, row_ + r * kRows, shape_.rows[r], n_ + o * kOutputs, shape_.outputs[o],
                         sums_[next_]);
    }
    ++next_;
  }
  void finish_all(const LinearArgs& a) {
    while (next_ < kTiles) finish_next(a);
  }

 private:
  static constexpr int kTiles = 4;

  Vectors sums_[kTiles];  // (outputs, rows)
  Shape shape_ = {};
  int64_t row_ = 0, n_ = 0;
  int next_ = kTiles;
};

// The outputs from n on and the rows from `row` on that are in the shape, which is configured.
// before: the sums of other outputs or rows; then those of these.
template <int PARTS, int OUTPUT_TILES, int ROW_TILES>
void tile(const LinearArgs& a, const std::byte* split, const Shape& shape, int64_t row, int64_t n,
          bool fetch, StoredTiles<PARTS>& before) {
  const int64_t K = a.W.K, stride = 2 * K, group_bytes = kRows * row_bytes<PARTS>(K);
  const std::byte* x[2] = {split + row / kRows * group_bytes,
                           split + (row / kRows + 1) * group_bytes};
  WeightTiles w{static_cast<const std::byte*>(a.W.data) + n * stride, stride};
  // What follows these outputs in memory, as much of it as is read here.
  const std::byte* after = w.data + OUTPUT_TILES * kOutputs * stride;
  for_sums<OUTPUT_TILES, ROW_TILES>([]<int O, int R>() { clear_tile<kSums + 2 * O + R>(); });
  int64_t k = 0;
  for (; k + kColumns <= K; k += kColumns) {
    if (fetch) fetch_lines<OUTPUT_TILES * kOutputs>(after);
    after += OUTPUT_TILES * kOutputs * kLine;
    add_columns<PARTS, OUTPUT_TILES, ROW_TILES>(w, x, shape);
    w.data += 2 * kColumns;
    for (int r = 0; r < 2; ++r) x[r] += PARTS * kPairs * kPairBytes * shape.rows[r];
    // Every second time, when what was stored last has reached the cache.
    if (k % (2 * kColumns) != 0) before.finish_next(a);
  }
  if (k < K) {
    alignas(64) std::byte last[OUTPUT_TILES * kOutputs][2 * kColumns] = {};
    for (int64_t j = 0; j < shape.outputs[0] + shape.outputs[1]; ++j) {
      std::memcpy(last[j], w.data + j * stride, 2 * (K - k));
    }
    add_columns<PARTS, OUTPUT_TILES, ROW_TILES>({last[0], 2 * kColumns}, x, shape);
  }
  before.finish_all(a);
  before.template store<OUTPUT_TILES, ROW_TILES>(shape, row, n);
}

// Outputs [begin, end) of the rows [row, row_end), at most two tiles of them.
template <int PARTS>
void row_tiles(const LinearArgs& a, const std::byte* split, int64_t row, int64_t row_end,
               int64_t begin, int64_t end, bool fetch, Shape* configured,
               StoredTiles<PARTS>& before) {
  static_assert(kRows == kOutputs);
  const auto two = [](int64_t rest) {
    return std::array{std::min(rest, kRows), std::clamp<int64_t>(rest - kRows, 0, kRows)};
  };
  const auto rows = two(row_end - row);
  // With one tile of rows a second one of outputs spares nothing, and their weights come in an
  // order that is further from that of memory.
  const int64_t step = rows[1] > 0 ? 2 * kOutputs : kOutputs;
  for (int64_t n = begin; n < end; n += step) {
    const Shape shape{.outputs = two(std::min(end - n, step)), .rows = rows};
    if (shape != *configured) configure(*configured = shape);
    if (rows[1] == 0) {
      tile<PARTS, 1, 1>(a, split, shape, row, n, fetch, before);
    } else if (shape.outputs[1] == 0) {
      tile<PARTS, 1, 2>(a, split, shape, row, n, fetch, before);
    } else {
      tile<PARTS, 2, 2>(a, split, shape, row, n, fetch, before);
    }
  }
}

template <int PARTS>
void amx_block(const LinearArgs& a, const std::byte* split, int64_t row_begin, int64_t row_end,
               int64_t begin, int64_t end) {
  Shape configured = {};
  StoredTiles<PARTS> stored;
  for (int64_t row = row_begin; row < row_end; row += 2 * kRows) {
    // Only the first rows find their weights in memory; the next find them in the cache.
    row_tiles<PARTS>(a, split, row, row_end, begin, end, row == row_begin, &configured, stored);
  }
  stored.finish_all(a);
  release_tiles();
}

template <int PARTS>
constexpr LinearProducts kAmxProducts{.block = amx_block<PARTS>,
                                      .outputs = 2 * kOutputs,
                                      .rows = kRows,
                                      .cache_bytes = 1024 * 1024,
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
