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

// Up to kRows rows of x: for every 32 columns and each part, the upper one first, kPairs times a
// pair of columns of each row. (K / kColumns, PARTS, kPairs, rows, 2) in bf16, and zeros where a
// row has no more columns.
template <int PARTS>
void split_rows(const float* x, int64_t K, int64_t rows, std::byte* to) {
  const auto some = static_cast<__mmask16>((1u << rows) - 1);
  for (int64_t k = 0; k < K; k += kColumns) {
    Vectors parts[PARTS] = {};
    for (int64_t row = 0; row < rows; ++row) {
      const float* from = x + row * K + k;
      const Parts<PARTS> first(load(from, K - k)), second(load(from + kLanes, K - k - kLanes));
      HWY_UNROLL(3)
      for (int part = 0; part < PARTS; ++part) {
        parts[part][row] = upper_halves(first.of[part], second.of[part]);
      }
    }
    for (int part = 0; part < PARTS; ++part, to += kPairs * rows * kPairBytes) {
      if (rows == 1) {
        _mm512_storeu_si512(to, parts[part][0]);
        continue;
      }
      avx512::transpose(parts[part]);
      for (int64_t pair = 0; pair < kPairs; ++pair) {
        _mm512_mask_storeu_epi32(to + pair * rows * kPairBytes, some, parts[part][pair]);
      }
    }
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

// Adds the products of 32 columns to the sums. x: of these columns, of both tiles of rows.
template <int PARTS, int OUTPUT_TILES, int ROW_TILES>
HWY_INLINE void add_columns(const WeightTiles& w, const std::byte* const (&x)[2],
                            const Shape& shape) {
  load_tile<kWeights>(w.data, w.stride);
  if constexpr (OUTPUT_TILES > 1) {
    load_tile<kWeights + 1>(w.data + kOutputs * w.stride, w.stride);
  }
  const int64_t first = shape.rows[0] * kPairBytes, second = shape.rows[1] * kPairBytes;
  HWY_UNROLL(3)
  for (int64_t part = PARTS - 1; part >= 0; --part) {
    load_tile<kX>(x[0] + part * kPairs * first, first);
    if constexpr (ROW_TILES > 1) load_tile<kX + 1>(x[1] + part * kPairs * second, second);
    add_products<kSums, kWeights, kX>();
    if constexpr (ROW_TILES > 1) add_products<kSums + 1, kWeights, kX + 1>();
    if constexpr (OUTPUT_TILES > 1) {
      add_products<kSums + 2, kWeights + 1, kX>();
      if constexpr (ROW_TILES > 1) add_products<kSums + 3, kWeights + 1, kX + 1>();
    }
  }
}

// The sums of one tile, (outputs, rows), with bias and residual into y.
template <int PARTS>
void finish_tile(const LinearArgs& a, int64_t row, int64_t rows, int64_t n, int64_t outputs,
                 Vectors& sums) {
  if (rows > 1) avx512::transpose(sums);
  for (int64_t r = 0; r < rows; ++r) {
    finish_row<(PARTS > 1)>(a, row + r, n, outputs, _mm512_castsi512_ps(sums[r]));
  }
}

// The outputs from n on and the rows from `row` on that are in the shape, which is configured.
template <int PARTS, int OUTPUT_TILES, int ROW_TILES>
void tile(const LinearArgs& a, const std::byte* split, const Shape& shape, int64_t row, int64_t n,
          bool fetch) {
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
  }
  if (k < K) {
    alignas(64) std::byte last[OUTPUT_TILES * kOutputs][2 * kColumns] = {};
    for (int64_t j = 0; j < shape.outputs[0] + shape.outputs[1]; ++j) {
      std::memcpy(last[j], w.data + j * stride, 2 * (K - k));
    }
    add_columns<PARTS, OUTPUT_TILES, ROW_TILES>({last[0], 2 * kColumns}, x, shape);
  }
  for_sums<OUTPUT_TILES, ROW_TILES>([&]<int O, int R>() {
    Vectors sums;
    // A single row's lie one after the other.
    store_tile<kSums + 2 * O + R>(sums, shape.rows[R] == 1 ? kPairBytes : 64);
    finish_tile<PARTS>(a, row + R * kRows, shape.rows[R], n + O * kOutputs, shape.outputs[O], sums);
  });
}

// Outputs [begin, end) of the rows [row, row_end), at most two tiles of them.
template <int PARTS>
void row_tiles(const LinearArgs& a, const std::byte* split, int64_t row, int64_t row_end,
               int64_t begin, int64_t end, bool fetch, Shape* configured) {
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
      tile<PARTS, 1, 1>(a, split, shape, row, n, fetch);
    } else if (shape.outputs[1] == 0) {
      tile<PARTS, 1, 2>(a, split, shape, row, n, fetch);
    } else {
      tile<PARTS, 2, 2>(a, split, shape, row, n, fetch);
    }
  }
}

template <int PARTS>
void amx_block(const LinearArgs& a, const std::byte* split, int64_t row_begin, int64_t row_end,
               int64_t begin, int64_t end) {
  Shape configured = {};
  for (int64_t row = row_begin; row < row_end; row += 2 * kRows) {
    // Only the first rows find their weights in memory; the next find them in the cache.
    row_tiles<PARTS>(a, split, row, row_end, begin, end, row == row_begin, &configured);
  }
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
