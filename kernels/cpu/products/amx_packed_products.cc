// Products of x in fp32 with weights in int8 and int4, on AMX, whose instruction for bytes
// multiplies the q of 16 outputs, w = s q or s q + m, of a group's 64 columns with as many bytes of
// up to 16 rows, and adds in whole numbers, exactly.
//
// x of a group becomes whole numbers too, of four digits (digit_rows.h), in units of u. Then
//   y = the sum of u s D + t m over the groups in their order,
//   D = ((256 D_3 + D_2) 256 + D_1) 256 + D_0,
// D_i the sum of d_i q, t the sum of x, and m in int4 alone; each multiplication is rounded
// together with the addition of its product.
//
// A single row has its digits next to each other as what the instruction takes for four rows. As
// sums are exact, bits do not depend on it.
#include <hwy/base.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/ceil_div.h"
#include "kernels/cpu/aligned_memory.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/products/narrow_products.h"
#include "kernels/cpu/targets.h"
#include "kernels/formats/int4.h"
#include "kernels/formats/int8.h"
#include "kernels/weight_format.h"

// After the choice of instruction sets.
#include "kernels/cpu/products/where_possible.h"

#if HWY_ARCH_X86_64 && (HWY_ATTAINABLE_TARGETS & HWY_AVX3) && defined(__linux__)
HWY_PUSH_ATTRIBUTES(
    "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma,f16c,bmi,bmi2,amx-tile,amx-bf16,amx-int8")
#include "kernels/cpu/products/amx.h"
#include "kernels/cpu/products/digit_rows.h"
#include "kernels/cpu/products/packed_outputs.h"

namespace recurve::cpu {
namespace {

using namespace amx;
using avx512::kGroup;
using avx512::PackedOutputs;

constexpr int64_t kTileBytes = kOutputs * kGroup;  // of weights

// How the q of an output's group become bytes, and in which order x has to meet them.
struct Int8Tiles : avx512::Int8Groups {
  static constexpr bool kInPlace = true;  // they are bytes
  HWY_INLINE static __m512i load(const std::byte* group) { return _mm512_loadu_si512(group); }
  HWY_INLINE static void order(__m512i (&)[4]) {}
};

struct Int4Tiles : avx512::Int4Groups {
  static constexpr bool kInPlace = false;
  // Bits 4 i to 4 i + 3 of word j are column 16 i + j.
  HWY_INLINE static void order(__m512i (&x)[4]) {
    const __m512i first = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    const __m512i a = _mm512_permutex2var_epi32(x[0], first, x[2]);
    const __m512i b = _mm512_permutex2var_epi32(x[0], second, x[2]);
    const __m512i c = _mm512_permutex2var_epi32(x[1], first, x[3]);
    const __m512i d = _mm512_permutex2var_epi32(x[1], second, x[3]);
    x[0] = a, x[1] = b, x[2] = c, x[3] = d;
  }
};

// The tile registers: sums of each digit, of a single row those of two groups in turns; a tile of
// weights and three of x.
constexpr int kSums = 0, kWeights = 4, kX = 5;

void configure(int64_t rows) {
  const int64_t columns = rows == 1 ? kDigits : rows;
  TileConfig config;
  for (int i = 0; i < kDigits; ++i) config.set(kSums + i, kOutputs, columns);
  config.set(kWeights, kOutputs, kQuads);
  for (int i = 0; i < 3; ++i) config.set(kX + i, kQuads, columns);
  config.use();
}

// The sums of the products with the tile X.
template <int SUMS, int X>
HWY_INLINE void multiply_tiles() {
  clear_tile<SUMS>();
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(kWeights), "i"(X));
}

// Of a group: of each digit the sums (kOutputs, rows), a row of them in 64 bytes; of a single row
// (kOutputs, kDigits).
using GroupSums = int32_t[kDigits][kOutputs * kLanes];

// Weights have left the processor's store buffers before tiles of them are loaded, as what is still
// there holds a tile up.
constexpr int64_t kTilesAhead = 3;

// What a thread computes in. Where there are less rows than lanes, the remaining lanes are what was
// there before.
struct Memory {
  alignas(64) std::byte tiles[kTilesAhead + 1][kTileBytes];
  alignas(64) GroupSums sums[2];
};

// A group of 16 outputs, in bytes: (kOutputs, kGroup).
struct Tile {
  const std::byte* data;
  int64_t stride;
};

// The scales of a group of 16 outputs.
struct GroupScales {
  alignas(64) float scale[kOutputs];
  alignas(64) float least[kOutputs];
};

template <class Format>
void load_scales(const PackedOutputs<Format>& outputs, int64_t groups, GroupScales* to) {
  for (int64_t g = 0; g < groups; g += kLanes) {
    const int64_t count = std::min(kLanes, groups - g);
    Vectors scale, least;
    outputs.load_scales(g, count, scale, least);
    for (int64_t i = 0; i < count; ++i, ++to) {
      _mm512_store_si512(to->scale, scale[i]);
      if constexpr (Format::kMinimum) _mm512_store_si512(to->least, least[i]);
    }
  }
}

template <class Format>
HWY_INLINE void copy_tile(const PackedOutputs<Format>& outputs, int64_t g, std::byte* to) {
  HWY_UNROLL(16)
  for (int64_t i = 0; i < kOutputs; ++i) {
    _mm512_store_si512(to + i * kGroup, Format::load(outputs.group(i, g)));
  }
}

// Of a single row: makes the sums of a group in the registers SUMS, and stores those of the group
// before, unless that is null.
template <int SUMS, int BEFORE>
HWY_INLINE void multiply_single(const Tile& w, const std::byte* x, GroupSums* before) {
  constexpr int64_t kStride = kDigits * 4;
  load_tile<kWeights>(w.data, w.stride);
  load_tile<kX>(x, kStride);
  multiply_tiles<SUMS, kX>();
  if (before != nullptr) store_tile<BEFORE>((*before)[0], kStride);
}

// The same of up to 16 rows, all in one set of registers. What is still to be stored holds up loads
// that come after it and have the same place in another page: so most tiles are loaded before.
HWY_INLINE void multiply_rows(const Tile& w, const std::byte* x, int64_t rows, GroupSums* before) {
  const int64_t stride = rows * 4, digit = kQuads * stride;
  const auto store = [&]<int DIGIT>() {
    if (before != nullptr) store_tile<kSums + DIGIT>((*before)[DIGIT], kLanes * 4);
  };
  load_tile<kWeights>(w.data, w.stride);
  load_tile<kX>(x, stride);
  load_tile<kX + 1>(x + digit, stride);
  load_tile<kX + 2>(x + 2 * digit, stride);
  store.template operator()<0>();
  multiply_tiles<kSums, kX>();
  load_tile<kX>(x + 3 * digit, stride);
  store.template operator()<1>();
  multiply_tiles<kSums + 1, kX + 1>();
  store.template operator()<2>();
  multiply_tiles<kSums + 2, kX + 2>();
  store.template operator()<3>();
  multiply_tiles<kSums + 3, kX>();
}

// Makes the sums of group g, and stores those of the group before.
template <bool SINGLE>
HWY_INLINE void multiply_group(const Tile& w, const XRows& x, int64_t g, bool first,
                               Memory& memory) {
  const std::byte* digits = x.digits + g * x.rows * kXBytes;
  GroupSums* before = first ? nullptr : &memory.sums[(g - 1) & 1];
  if constexpr (!SINGLE) {
    multiply_rows(w, digits, x.rows, before);
  } else if ((g & 1) == 0) {
    multiply_single<kSums, kSums + 1>(w, digits, before);
  } else {
    multiply_single<kSums + 1, kSums>(w, digits, before);
  }
}

// Stores those of the last group.
template <bool SINGLE>
HWY_INLINE void store_group(int64_t g, Memory& memory) {
  GroupSums& to = memory.sums[g & 1];
  if constexpr (!SINGLE) {
    store_tile<kSums>(to[0], kLanes * 4);
    store_tile<kSums + 1>(to[1], kLanes * 4);
    store_tile<kSums + 2>(to[2], kLanes * 4);
    store_tile<kSums + 3>(to[3], kLanes * 4);
  } else if ((g & 1) == 0) {
    store_tile<kSums>(to[0], kDigits * 4);
  } else {
    store_tile<kSums + 1>(to[0], kDigits * 4);
  }
}

// The number of these digits.
HWY_INLINE __m512 whole(__m512i d3, __m512i d2, __m512i d1, __m512i d0) {
  const __m512 base = _mm512_set1_ps(256);
  const __m512 upper = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d3), base, _mm512_cvtepi32_ps(d2));
  return _mm512_fmadd_ps(_mm512_fmadd_ps(upper, base, _mm512_cvtepi32_ps(d1)), base,
                         _mm512_cvtepi32_ps(d0));
}

// The sums of up to 16 rows, (kOutputs, rows); of a single row (kOutputs).
template <bool SINGLE>
struct Sums {
  __m512 of[SINGLE ? 1 : kOutputs];
};

// Adds those of group g.
template <class Format, bool SINGLE>
HWY_INLINE void add_group(const GroupSums& group, const GroupScales& scales, const XRows& x,
                          int64_t g, Sums<SINGLE>& sums) {
  const auto load_sums = [&](int digit, int64_t i) {
    return _mm512_load_si512(group[digit] + i * kLanes);
  };
  if constexpr (SINGLE) {
    const __m512i fours[4] = {load_sums(0, 0), load_sums(0, 1), load_sums(0, 2), load_sums(0, 3)};
    __m512i d[kDigits];
    turn_fours(fours, d);
    const __m512 dots =
        _mm512_castsi512_ps(in_order(_mm512_castps_si512(whole(d[3], d[2], d[1], d[0]))));
    const __m512 scale = _mm512_mul_ps(_mm512_load_ps(scales.scale), _mm512_set1_ps(x.units[g]));
    sums.of[0] = _mm512_fmadd_ps(dots, scale, sums.of[0]);
    if constexpr (Format::kMinimum) {
      sums.of[0] =
          _mm512_fmadd_ps(_mm512_set1_ps(x.sums[g]), _mm512_load_ps(scales.least), sums.of[0]);
    }
  } else {
    const __m512 unit = load(x.units + g * x.rows, x.rows);
    __m512 total = _mm512_setzero_ps();
    if constexpr (Format::kMinimum) total = load(x.sums + g * x.rows, x.rows);
    HWY_UNROLL(16)
    for (int64_t i = 0; i < kOutputs; ++i) {
      const __m512 dots = whole(load_sums(3, i), load_sums(2, i), load_sums(1, i), load_sums(0, i));
      const __m512 scale = _mm512_mul_ps(_mm512_set1_ps(scales.scale[i]), unit);
      sums.of[i] = _mm512_fmadd_ps(dots, scale, sums.of[i]);
      if constexpr (Format::kMinimum) {
        sums.of[i] = _mm512_fmadd_ps(total, _mm512_set1_ps(scales.least[i]), sums.of[i]);
      }
    }
  }
}

// Adds those of the groups [begin, end). tiles.group(g): the weights, asked for in turn.
template <class Format, bool SINGLE, class Tiles>
HWY_INLINE void add_groups(const Tiles& tiles, const GroupScales* scales, const XRows& x,
                           int64_t begin, int64_t end, Memory& memory, Sums<SINGLE>& sums) {
  Sums<SINGLE> local = sums;
  // A group's sums are added when those of the next one are being made; of a single row a little
  // later, as there is less to do in between.
  constexpr int64_t kLater = 2;
  for (int64_t g = begin; g < end + kLater; ++g) {
    const int64_t done = g - kLater;
    if (!SINGLE && done >= begin) {
      add_group<Format, SINGLE>(memory.sums[done & 1], scales[done], x, done, local);
    }
    if (g < end) {
      multiply_group<SINGLE>(tiles.group(g), x, g, g == begin, memory);
    } else if (g == end) {
      store_group<SINGLE>(g - 1, memory);
    }
    if (SINGLE && done >= begin) {
      add_group<Format, SINGLE>(memory.sums[done & 1], scales[done], x, done, local);
    }
  }
  sums = local;
}

// With bias and residual into y, of `outputs` outputs from n on.
template <bool SINGLE>
void finish(const LinearArgs& a, int64_t row, int64_t rows, int64_t n, int64_t outputs,
            const Sums<SINGLE>& sums) {
  if constexpr (SINGLE) {
    finish_row<true>(a, row, n, outputs, sums.of[0]);
  } else {
    Vectors turned;
    for (int64_t i = 0; i < kOutputs; ++i) turned[i] = _mm512_castps_si512(sums.of[i]);
    avx512::transpose(turned);
    for (int64_t r = 0; r < rows; ++r) {
      finish_row<true>(a, row + r, n, outputs, _mm512_castsi512_ps(turned[r]));
    }
  }
}

// Tiles of weights as they are in memory, or made while others before them are multiplied.
template <class Format>
struct StreamedTiles {
  StreamedTiles(const PackedOutputs<Format>& from, const Matrix& W, int64_t n, Memory& memory)
      : outputs(from),
        groups(ceil_div(W.K, kGroup)),
        in_place(Format::kInPlace && n + kOutputs <= W.N),
        to(memory.tiles) {
    for (int64_t g = 0; g < std::min(groups, kTilesAhead) && !in_place; ++g) {
      copy_tile(outputs, g, to[g]);
    }
  }
  HWY_INLINE Tile group(int64_t g) const {
    outputs.fetch_group(g);
    if (in_place) return {outputs.group(0, g), groups * Format::kBytes};
    const int64_t next = g + kTilesAhead;
    if (next < groups) copy_tile(outputs, next, to[next % (kTilesAhead + 1)]);
    return {to[g % (kTilesAhead + 1)], kGroup};
  }

  const PackedOutputs<Format>& outputs;
  const int64_t groups;
  const bool in_place;
  std::byte (&to)[kTilesAhead + 1][kTileBytes];
};

struct PanelTiles {
  HWY_INLINE Tile group(int64_t g) const { return {first + g * kTileBytes, kGroup}; }

  const std::byte* first;
};

Memory& memory_of_thread() {
  static thread_local Memory memory = {};
  return memory;
}

// Up to 16 rows.
template <class Format, bool SINGLE>
void few_rows(const LinearArgs& a, const XRows& x, int64_t row, int64_t begin, int64_t end) {
  static thread_local AlignedMemory scales_memory;
  Memory& memory = memory_of_thread();
  const int64_t groups = ceil_div(a.W.K, kGroup);
  auto* const scales = scales_memory.reserve<GroupScales>(groups);
  configure(x.rows);
  for (int64_t n = begin; n < end; n += kOutputs) {
    const PackedOutputs<Format> outputs(a.W, n);
    load_scales(outputs, groups, scales);
    Sums<SINGLE> sums = {};
    add_groups<Format>(StreamedTiles<Format>(outputs, a.W, n, memory), scales, x, 0, groups, memory,
                       sums);
    finish(a, row, x.rows, n, std::min(kOutputs, end - n), sums);
  }
  release_tiles();
}

// The weights of a task with their scales: (tiles of kOutputs, groups).
struct Panel {
  template <class Format>
  void fill(const Matrix& W, int64_t begin, int64_t end) {
    groups = ceil_div(W.K, kGroup);
    tiles = ceil_div(end - begin, kOutputs);
    data = data_memory.reserve<std::byte>(tiles * groups * kTileBytes);
    scales = scales_memory.reserve<GroupScales>(tiles * groups);
    for (int64_t t = 0; t < tiles; ++t) {
      const PackedOutputs<Format> outputs(W, begin + t * kOutputs);
      load_scales(outputs, groups, scales + t * groups);
      for (int64_t g = 0; g < groups; ++g) {
        outputs.fetch_group(g);
        copy_tile(outputs, g, data + (t * groups + g) * kTileBytes);
      }
    }
  }

  int64_t groups = 0, tiles = 0;
  std::byte* data = nullptr;
  GroupScales* scales = nullptr;
  AlignedMemory data_memory, scales_memory;
};

// Rows that lie together, by all of the panel: some groups at a time, whose x stays in the first
// cache.
template <class Format, bool SINGLE>
void panel_rows(const LinearArgs& a, const Panel& panel, const XRows& x, int64_t row, int64_t begin,
                int64_t end) {
  constexpr int64_t kAtOnce = 4;
  static thread_local AlignedMemory sums_memory;
  Memory& memory = memory_of_thread();
  auto* const sums = sums_memory.reserve<Sums<SINGLE>>(panel.tiles);
  std::memset(sums, 0, static_cast<size_t>(panel.tiles) * sizeof(Sums<SINGLE>));
  configure(x.rows);
  for (int64_t g = 0; g < panel.groups; g += kAtOnce) {
    for (int64_t t = 0; t < panel.tiles; ++t) {
      add_groups<Format>(PanelTiles{panel.data + t * panel.groups * kTileBytes},
                         panel.scales + t * panel.groups, x, g, std::min(g + kAtOnce, panel.groups),
                         memory, sums[t]);
    }
  }
  for (int64_t t = 0; t < panel.tiles; ++t) {
    const int64_t n = begin + t * kOutputs;
    finish(a, row, x.rows, n, std::min(kOutputs, end - n), sums[t]);
  }
}

template <class Format>
void packed_block(const LinearArgs& a, const std::byte* split, int64_t row_begin, int64_t row_end,
                  int64_t begin, int64_t end) {
  if (row_end - row_begin <= kRows) {
    const XRows x(split, row_begin, row_end, a.W.K);
    return x.rows == 1 ? few_rows<Format, true>(a, x, row_begin, begin, end)
                       : few_rows<Format, false>(a, x, row_begin, begin, end);
  }
  static thread_local Panel panel;
  panel.fill<Format>(a.W, begin, end);
  for (int64_t row = row_begin; row < row_end; row += kRows) {
    const XRows x(split, row, row_end, a.W.K);
    x.rows == 1 ? panel_rows<Format, true>(a, panel, x, row, begin, end)
                : panel_rows<Format, false>(a, panel, x, row, begin, end);
  }
  release_tiles();
}

size_t packed_scratch(int64_t K, int64_t, int64_t outputs) {
  const auto groups = static_cast<size_t>(ceil_div(K, kGroup));
  const auto tiles = static_cast<size_t>(ceil_div(outputs, kOutputs));
  return tiles * (groups * (kTileBytes + sizeof(GroupScales)) + sizeof(Sums<false>)) +
         groups * sizeof(GroupScales);
}

// A panel of 1 MiB.
template <class Format>
constexpr LinearProducts kProducts{.block = packed_block<Format>,
                                   .outputs = kOutputs,
                                   .rows = kRows,
                                   .cache_bytes = 1024 * 1024 * Format::kBytes / kGroup,
                                   .rounded_bytes = row_bytes,
                                   .round = split_rows<Format>,
                                   .block_scratch = packed_scratch};

}  // namespace
}  // namespace recurve::cpu
HWY_POP_ATTRIBUTES

namespace recurve::cpu {

const LinearProducts* amx_int8_products() {
  return where_possible(kProducts<Int8Tiles>, amx::has_amx());
}
const LinearProducts* amx_int4_products() {
  return where_possible(kProducts<Int4Tiles>, amx::has_amx());
}

}  // namespace recurve::cpu

#else

namespace recurve::cpu {

const LinearProducts* amx_int8_products() { return nullptr; }
const LinearProducts* amx_int4_products() { return nullptr; }

}  // namespace recurve::cpu

#endif
