// Products of x in fp32 or bf16 with weights in bf16, on AMX, whose one instruction multiplies 16
// outputs' weights of 32 columns with the same columns of up to 16 rows.
//
// A value of x in fp32 is the sum of three in bf16, exactly: its upper 8 bits, those of what is
// left, and the last 8. So three products of bf16, which are exact, are one of fp32. A sum takes,
// for 32 columns after the other, the products of the last parts, of the middle ones and of the
// upper ones; each time those of the even columns and of the odd ones are added by themselves in
// their order, and both to the sum (TDPBF16PS in Intel's manual). What is subnormal counts as zero.
//
// x in bf16 is rounded to nearest, and is one such part.
//
// Weights are read as they lie, output by output: they are what the instruction calls the first
// matrix, and its sums have a row for each output. x is the second one, whose rows hold pairs of
// columns: so rows of x lie together, see split_rows().
#include <hwy/base.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "kernels/bf16.h"
#include "kernels/ceil_div.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/products/narrow_products.h"
#include "kernels/cpu/targets.h"

// After the choice of instruction sets.
#include "kernels/cpu/products/where_possible.h"

#if HWY_ARCH_X86_64 && (HWY_ATTAINABLE_TARGETS & HWY_AVX3) && defined(__linux__)
HWY_PUSH_ATTRIBUTES("avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,f16c,bmi,bmi2,amx-tile,amx-bf16")
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/products/avx512.h"

namespace recurve::cpu {
namespace {

using avx512::kLanes;
using avx512::Vectors;

constexpr int64_t kColumns = 32;  // of a tile of weights
constexpr int64_t kOutputs = 16;  // of a tile of weights
constexpr int64_t kRows = 16;     // of x that lie together
constexpr int64_t kPairs = kColumns / 2;
constexpr int64_t kPairBytes = 4;

template <int PARTS>
int64_t row_bytes(int64_t K) {
  return ceil_div(K, kColumns) * PARTS * kPairs * kPairBytes;
}

// The upper halves of the 32 words of a, then b.
__m512i upper_halves(__m512i a, __m512i b) {
  alignas(64) static constexpr auto kOdd = [] {
    std::array<uint16_t, 32> odd = {};
    for (uint16_t i = 0; i < 32; ++i) odd[i] = static_cast<uint16_t>(2 * i + 1);
    return odd;
  }();
  return _mm512_permutex2var_epi16(a, _mm512_load_si512(kOdd.data()), b);
}

// 16 values as the sum of so many in bf16, each in the upper half of a word.
template <int PARTS>
struct Parts {
  static_assert(PARTS == 1 || PARTS == 3);
  explicit Parts(__m512 x) {
    const __m512i halves = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    const __m512i bits = _mm512_castps_si512(x);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    if constexpr (PARTS == 1) {  // to nearest, ties to even
      const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
      const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
      of[0] = _mm512_mask_or_epi32(_mm512_add_epi32(bits, half), nan, bits, halves);
    } else {  // what is not finite is the upper one alone
      const __mmask16 finite = _mm512_cmp_ps_mask(
          _mm512_abs_ps(x), _mm512_set1_ps(std::numeric_limits<float>::max()), _CMP_LE_OQ);
      of[0] = _mm512_mask_or_epi32(_mm512_and_si512(bits, halves), nan, bits, halves);
      const __m512 rest = _mm512_maskz_sub_ps(finite, x, _mm512_castsi512_ps(of[0]));
      of[1] = _mm512_and_si512(_mm512_castps_si512(rest), halves);
      of[2] = _mm512_castps_si512(_mm512_sub_ps(rest, _mm512_castsi512_ps(of[1])));
    }
  }
  __m512i of[PARTS];
};

__m512 load(const float* from, int64_t count) {
  const auto some = static_cast<__mmask16>((1u << std::clamp<int64_t>(count, 0, kLanes)) - 1);
  return _mm512_maskz_loadu_ps(some, from);
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

// The instructions by the number of their registers, of which g++ 12 wants the digits themselves in
// its intrinsics.
template <int TILE>
HWY_INLINE void load_tile(const void* from, int64_t row_stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0"
               :
               : "i"(TILE), "r"(from), "r"(row_stride)
               : "memory");
}
template <int TILE>
HWY_INLINE void store_tile(void* to, int64_t row_stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(TILE), "r"(to), "r"(row_stride) : "memory");
}
template <int TILE>
HWY_INLINE void clear_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(TILE));
}
template <int SUMS, int W, int X>
HWY_INLINE void add_products() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(W), "i"(X));
}

// The tile registers: two tiles of weights with two of x give four of sums.
constexpr int kSums = 0, kWeights = 4, kX = 6;

// How many outputs and rows there are in the two tiles of each, at least one in the first.
struct Shape {
  std::array<int64_t, 2> outputs, rows;
  bool operator==(const Shape&) const = default;
};

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0;
  std::array<uint8_t, 14> reserved = {};
  std::array<uint16_t, 16> row_bytes = {};
  std::array<uint8_t, 16> rows = {};

  void set(int tile, int64_t tile_rows, int64_t tile_columns) {
    if (tile_rows == 0 || tile_columns == 0) return;
    rows[tile] = static_cast<uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<uint16_t>(tile_columns * kPairBytes);
  }
};
static_assert(sizeof(TileConfig) == 64);

void configure(const Shape& shape) {
  TileConfig config;
  for (int o = 0; o < 2; ++o) {
    config.set(kWeights + o, shape.outputs[o], kPairs);
    config.set(kX + o, kPairs, shape.rows[o]);
    for (int r = 0; r < 2; ++r) config.set(kSums + 2 * o + r, shape.outputs[o], shape.rows[r]);
  }
  asm volatile("ldtilecfg %0" : : "m"(config));
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

bool any_nan(const float* values, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const __m512 some = load(values + i, count - i);
    if (_mm512_cmp_ps_mask(some, some, _CMP_UNORD_Q) != 0) return true;
  }
  return false;
}

// A part of x that is zero makes NaN of a weight that is infinite, where x itself may not: so of
// rows without NaN, sums that are NaN are made again of the whole values.
__m512 without_parts(const LinearArgs& a, int64_t row, int64_t n, __mmask16 which, __m512 sums) {
  const float* x = a.x + row * a.W.K;
  if (any_nan(x, a.W.K)) return sums;
  alignas(64) float values[kLanes];
  _mm512_store_ps(values, sums);
  for (int64_t j = 0; j < kLanes; ++j) {
    if ((which >> j & 1) == 0) continue;
    const auto* w = static_cast<const uint16_t*>(a.W.data) + (n + j) * a.W.K;
    values[j] = 0;
    for (int64_t k = 0; k < a.W.K; ++k) values[j] += x[k] * bf16_to_f32(w[k]);
  }
  return _mm512_load_ps(values);
}

// The sums of one tile, (outputs, rows), with bias and residual into y.
template <int PARTS>
void finish_tile(const LinearArgs& a, int64_t row, int64_t rows, int64_t n, int64_t outputs,
                 Vectors& sums) {
  const auto some = static_cast<__mmask16>((1u << outputs) - 1);
  const __m512 bias = a.bias != nullptr ? _mm512_maskz_loadu_ps(some, a.bias + n) : __m512{};
  if (rows > 1) avx512::transpose(sums);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = (row + r) * a.W.N + n;
    __m512 sum = _mm512_castsi512_ps(sums[r]);
    const __mmask16 nan = _mm512_mask_cmp_ps_mask(some, sum, sum, _CMP_UNORD_Q);
    if (PARTS > 1 && nan != 0) sum = without_parts(a, row + r, n, nan, sum);
    if (a.bias != nullptr) sum = _mm512_add_ps(sum, bias);
    if (a.residual != nullptr) {
      sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(some, a.residual + at));
    }
    _mm512_mask_storeu_ps(a.y + at, some, sum);
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
  asm volatile("tilerelease");
}

template <int PARTS>
constexpr LinearProducts kAmxProducts{.block = amx_block<PARTS>,
                                      .outputs = 2 * kOutputs,
                                      .rows = kRows,
                                      .cache_bytes = 1024 * 1024,
                                      .rounded_bytes = row_bytes<PARTS>,
                                      .round = split_rows<PARTS>};

// Whether the processor has the instructions and the system lets this process use the registers.
bool ask_for_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBf16) == 0 || (d & kTile) == 0) {
    return false;
  }
  constexpr long kAskForState = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  return syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
}

bool has_amx() {
  static const bool there = ask_for_amx();
  return there;
}

}  // namespace
}  // namespace recurve::cpu
HWY_POP_ATTRIBUTES

namespace recurve::cpu {

const LinearProducts* amx_f32_products() { return where_possible(kAmxProducts<3>, has_amx()); }
const LinearProducts* amx_bf16_products() { return where_possible(kAmxProducts<1>, has_amx()); }

}  // namespace recurve::cpu

#else

namespace recurve::cpu {

const LinearProducts* amx_f32_products() { return nullptr; }
const LinearProducts* amx_bf16_products() { return nullptr; }

}  // namespace recurve::cpu

#endif
