// Products of x in eight bits with weights in int8 and int4, on AVX512-VNNI, whose one instruction
// multiplies bytes without a sign by bytes with one and adds four products to each of 16 sums.
//
// Lane n of a vector belongs to output n of 16. A single row multiplies the weights as they stand,
// and its lanes are added across; for several rows 16 outputs are turned over first, so that four
// columns of each are a vector. Within a group sums are whole numbers, exact in any order; the sum
// over groups is one chain of fp32 in both, so a row's bits do not depend on how many there are.
#include <hwy/base.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/ceil_div.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/linear/row_tiles.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/products/narrow_products.h"
#include "kernels/cpu/targets.h"
#include "kernels/formats/int4.h"
#include "kernels/formats/int8.h"

// After the choice of instruction sets.
#include "kernels/cpu/products/where_possible.h"

#if HWY_ARCH_X86_64 && (HWY_ATTAINABLE_TARGETS & HWY_AVX3)
HWY_PUSH_ATTRIBUTES("avx512f,avx512vl,avx512dq,avx512bw,avx512vnni,avx2,fma,f16c,bmi,bmi2")
#include "kernels/cpu/products/avx512.h"
#include "kernels/cpu/products/packed_outputs.h"

namespace recurve::cpu {
namespace {

using avx512::kGroup;
using avx512::kLanes;

constexpr int64_t kSteps = kGroup / 4;         // vectors of four columns in a group
constexpr int64_t kPanelGroups = 16;           // turned over at once: 64 KiB of four vectors
constexpr int kRows = 6, kVectors = 4;         // of a tile
constexpr int64_t kPanel = kVectors * kLanes;  // outputs
constexpr float kLeastSize = 1e-30f;           // below it a group of x is taken for zeros

// A row of x: of each group 64 bytes q; then of each s, s times the sum of q, and what a sum of
// products lacks.
struct ByteRow {
  ByteRow(const std::byte* row, int64_t groups)
      : q(row),
        scale(reinterpret_cast<const float*>(row + groups * kGroup)),
        sum(scale + groups),
        lacking(reinterpret_cast<const int32_t*>(sum + groups)) {}
  static int64_t bytes(int64_t K) {
    return ceil_div(ceil_div(K, kGroup) * (kGroup + 12), int64_t{64}) * 64;
  }

  const std::byte* q;
  const float *scale, *sum;
  const int32_t* lacking;
};

// How a format's groups become bytes without a sign, and x is laid out to meet them.
struct Int8Bytes : avx512::Int8Groups {
  static constexpr int kOffset = 128;  // added to the weights

  HWY_INLINE static __m512i load(const std::byte* group) {
    return _mm512_xor_si512(_mm512_loadu_si512(group), _mm512_set1_epi8(-128));
  }
  HWY_INLINE static __m512i order(__m512i q) { return q; }
};

struct Int4Bytes : avx512::Int4Groups {
  static constexpr int kOffset = 0;

  // Bits 4 i to 4 i + 3 of word j are column 16 i + j.
  HWY_INLINE static __m512i order(__m512i q) {
    const __m128i a = _mm512_castsi512_si128(q), b = _mm512_extracti32x4_epi32(q, 1);
    const __m128i c = _mm512_extracti32x4_epi32(q, 2), d = _mm512_extracti32x4_epi32(q, 3);
    __m512i out = _mm512_castsi128_si512(_mm_unpacklo_epi8(a, c));
    out = _mm512_inserti32x4(out, _mm_unpackhi_epi8(a, c), 1);
    out = _mm512_inserti32x4(out, _mm_unpacklo_epi8(b, d), 2);
    return _mm512_inserti32x4(out, _mm_unpackhi_epi8(b, d), 3);
  }
};

template <class Format>
void round_row(const float* x, int64_t K, int64_t, std::byte* to) {
  const int64_t groups = ceil_div(K, kGroup);
  auto* scales = reinterpret_cast<float*>(to + groups * kGroup);
  auto* lacking = reinterpret_cast<int32_t*>(scales + 2 * groups);
  for (int64_t g = 0; g < groups; ++g) {
    __m512 values[4], largest = _mm512_setzero_ps();
    __mmask16 bad = 0;
    HWY_UNROLL(8)
    for (int i = 0; i < 4; ++i) {
      const int64_t k = g * kGroup + i * kLanes;
      const auto there = std::clamp<int64_t>(K - k, 0, kLanes);
      values[i] = _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << there) - 1), x + k);
      largest = _mm512_max_ps(largest, _mm512_abs_ps(values[i]));
      bad |= _mm512_cmp_ps_mask(values[i], values[i], _CMP_UNORD_Q);
    }
    const float size = _mm512_reduce_max_ps(largest);
    const bool zero = size < kLeastSize;
    const __m512 inverse = _mm512_set1_ps(zero ? 0 : 127 / size);
    __m512i q = _mm512_setzero_si512(), sum = _mm512_setzero_si512();
    HWY_UNROLL(8)
    for (int i = 0; i < 4; ++i) {
      const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(values[i], inverse));
      sum = _mm512_add_epi32(sum, whole);
      const __m128i bytes = _mm512_cvtsepi32_epi8(whole);
      q = i == 0   ? _mm512_castsi128_si512(bytes)
          : i == 1 ? _mm512_inserti32x4(q, bytes, 1)
          : i == 2 ? _mm512_inserti32x4(q, bytes, 2)
                   : _mm512_inserti32x4(q, bytes, 3);
    }
    _mm512_storeu_si512(to + g * kGroup, Format::order(q));
    const bool finite = bad == 0 && size <= std::numeric_limits<float>::max();
    const float scale = finite ? (zero ? 0 : size / 127) : std::numeric_limits<float>::quiet_NaN();
    const int32_t total = finite ? _mm512_reduce_add_epi32(sum) : 0;
    scales[g] = scale;
    scales[groups + g] = scale * static_cast<float>(total);
    lacking[g] = -Format::kOffset * total;
  }
}

template <class Format>
using Outputs = avx512::PackedOutputs<Format>;

// sum + scale dots + least, of x's group g: in this order everywhere.
template <class Format>
HWY_INLINE __m512 with_group(__m512 sum, __m512i dots, const ByteRow& x, int64_t g,
                             __m512i weight_scale, __m512i least) {
  const __m512 scale = _mm512_mul_ps(_mm512_castsi512_ps(weight_scale), _mm512_set1_ps(x.scale[g]));
  if constexpr (Format::kOffset != 0)
    dots = _mm512_add_epi32(dots, _mm512_set1_epi32(x.lacking[g]));
  sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scale, sum);
  if constexpr (Format::kMinimum) {
    sum = _mm512_fmadd_ps(_mm512_castsi512_ps(least), _mm512_set1_ps(x.sum[g]), sum);
  }
  return sum;
}

// One row: 16 outputs at a time, their lanes added across.
template <class Format>
void single_row(const LinearArgs& a, const ByteRow& x, int64_t row, int64_t begin, int64_t end) {
  const int64_t groups = ceil_div(a.W.K, kGroup);
  for (int64_t n = begin; n < end; n += kLanes) {
    const Outputs<Format> outputs(a.W, n);
    __m512 sum = _mm512_setzero_ps();
    avx512::Vectors scale, least;
    for (int64_t g = 0; g < groups; ++g) {
      if (g % kLanes == 0) {
        outputs.load_scales(g, std::min(kLanes, groups - g), scale, least);
      }
      outputs.fetch_group(g);
      const __m512i q = _mm512_loadu_si512(x.q + g * kGroup);
      avx512::Vectors products;
      HWY_UNROLL(16)
      for (int64_t i = 0; i < kLanes; ++i) {
        products[i] =
            _mm512_dpbusd_epi32(_mm512_setzero_si512(), Format::load(outputs.group(i, g)), q);
      }
      sum = with_group<Format>(sum, avx512::sums_of_lanes(products), x, g, scale[g % kLanes],
                               least[g % kLanes]);
    }
    alignas(64) float sums[kLanes];
    _mm512_store_ps(sums, sum);
    finish_outputs(a, row, n, std::min(kLanes, end - n), sums);
  }
}

// 16 groups of 64 outputs, turned over: four columns of 16 outputs are a vector.
struct Panel {
  __m512i q[kPanelGroups * kSteps * kVectors];
  __m512i scale[kPanelGroups * kVectors], least[kPanelGroups * kVectors];
};

// The vectors v of the panel: `count` groups from g on.
template <class Format>
void fill_panel(const Outputs<Format>& outputs, int v, int64_t g, int64_t count, Panel* panel) {
  avx512::Vectors turned, scale, least;
  outputs.load_scales(g, count, scale, least);
  for (int64_t i = 0; i < count; ++i) {
    outputs.fetch_group(g + i);
    HWY_UNROLL(16)
    for (int64_t n = 0; n < kLanes; ++n) turned[n] = Format::load(outputs.group(n, g + i));
    avx512::transpose(turned);
    HWY_UNROLL(16)
    for (int64_t step = 0; step < kSteps; ++step) {
      panel->q[(i * kSteps + step) * kVectors + v] = turned[step];
    }
    panel->scale[i * kVectors + v] = scale[i];
    if constexpr (Format::kMinimum) panel->least[i * kVectors + v] = least[i];
  }
}

HWY_INLINE __m512i four_columns(const std::byte* q) {
  int32_t four;
  std::memcpy(&four, q, sizeof(four));
  return _mm512_set1_epi32(four);
}

// Adds the panel's group i, which is g of x, to the sums of ROWS rows: (ROWS, kPanel). Called, so
// that the sums of products stay in registers.
template <class Format, int ROWS, int VECTORS>
HWY_NOINLINE void add_group(const Panel& panel, const ByteRow* x, int64_t i, int64_t g,
                            float* sums) {
  const __m512i* w = panel.q + i * kSteps * kVectors;
  const std::byte* q[ROWS];
  __m512i dots[ROWS][VECTORS];
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) {
    q[r] = x[r].q + g * kGroup;
    HWY_UNROLL(8)
    for (int v = 0; v < VECTORS; ++v) dots[r][v] = _mm512_setzero_si512();
  }
  for (int64_t step = 0; step < kSteps; ++step, w += kVectors) {
    __m512i columns[ROWS];
    HWY_UNROLL(8)
    for (int r = 0; r < ROWS; ++r) columns[r] = four_columns(q[r] + 4 * step);
    HWY_UNROLL(8)
    for (int v = 0; v < VECTORS; ++v) {
      const __m512i ws = w[v];
      HWY_UNROLL(8)
      for (int r = 0; r < ROWS; ++r) avx512::add_products(dots[r][v], ws, columns[r]);
    }
  }
  HWY_UNROLL(8)
  for (int v = 0; v < VECTORS; ++v) {
    const int64_t at = i * kVectors + v;
    HWY_UNROLL(8)
    for (int r = 0; r < ROWS; ++r) {
      float* sum = sums + r * kPanel + v * kLanes;
      _mm512_storeu_ps(sum, with_group<Format>(_mm512_loadu_ps(sum), dots[r][v], x[r], g,
                                               panel.scale[at], panel.least[at]));
    }
  }
}

// Adds the panel's groups, which are `count` from g on.
template <class Format, int ROWS, int VECTORS>
void add_panel(const Panel& panel, const ByteRow* x, int64_t g, int64_t count, float* sums) {
  for (int64_t i = 0; i < count; ++i) {
    add_group<Format, ROWS, VECTORS>(panel, x, i, g + i, sums);
  }
}

template <class Format, int ROWS>
void add_panel(int vectors, const Panel& panel, const ByteRow* x, int64_t g, int64_t count,
               float* sums) {
  switch (vectors) {
    case 1:
      return add_panel<Format, ROWS, 1>(panel, x, g, count, sums);
    case 2:
      return add_panel<Format, ROWS, 2>(panel, x, g, count, sums);
    case 3:
      return add_panel<Format, ROWS, 3>(panel, x, g, count, sums);
    default:
      return add_panel<Format, ROWS, kVectors>(panel, x, g, count, sums);
  }
}

template <class Format>
void byte_block(const LinearArgs& a, const std::byte* rounded, int64_t row_begin, int64_t row_end,
                int64_t begin, int64_t end) {
  const int64_t groups = ceil_div(a.W.K, kGroup), row_bytes = ByteRow::bytes(a.W.K);
  const int64_t rows = row_end - row_begin;
  if (rows == 1) {
    const ByteRow x(rounded + row_begin * row_bytes, groups);
    return single_row<Format>(a, x, row_begin, begin, end);
  }
  static thread_local std::vector<ByteRow> x;
  static thread_local std::vector<float> sums;  // (rows, kPanel)
  static thread_local const auto panel = std::make_unique<Panel>();
  x.clear();
  x.reserve(static_cast<size_t>(rows));
  for (int64_t row = row_begin; row < row_end; ++row) {
    x.emplace_back(rounded + row * row_bytes, groups);
  }
  for (int64_t n = begin; n < end; n += kPanel) {
    const int64_t wanted = std::min(kPanel, end - n);
    const auto vectors = static_cast<int>(ceil_div(wanted, kLanes));
    sums.assign(static_cast<size_t>(rows * kPanel), 0);
    for (int64_t g = 0; g < groups; g += kPanelGroups) {
      const int64_t count = std::min(kPanelGroups, groups - g);
      for (int v = 0; v < vectors; ++v) {
        fill_panel(Outputs<Format>(a.W, n + v * kLanes), v, g, count, panel.get());
      }
      for_row_tiles<kRows>(0, rows, kRows, [&]<int ROWS>(int64_t row) {
        add_panel<Format, ROWS>(vectors, *panel, x.data() + row, g, count,
                                sums.data() + row * kPanel);
      });
    }
    for (int64_t row = 0; row < rows; ++row) {
      finish_outputs(a, row_begin + row, n, wanted, sums.data() + row * kPanel);
    }
  }
}

size_t byte_scratch(int64_t, int64_t rows, int64_t) {
  return static_cast<size_t>(rows) * (sizeof(ByteRow) + kPanel * sizeof(float)) + sizeof(Panel);
}

constexpr LinearProducts kInt8Products{.block = byte_block<Int8Bytes>,
                                       .outputs = kLanes,
                                       .rounded_bytes = ByteRow::bytes,
                                       .round = round_row<Int8Bytes>,
                                       .block_scratch = byte_scratch};
constexpr LinearProducts kInt4Products{.block = byte_block<Int4Bytes>,
                                       .outputs = kLanes,
                                       .rounded_bytes = ByteRow::bytes,
                                       .round = round_row<Int4Bytes>,
                                       .block_scratch = byte_scratch};

}  // namespace
}  // namespace recurve::cpu
HWY_POP_ATTRIBUTES

namespace recurve::cpu {

const LinearProducts* int8_products() {
  return where_possible(kInt8Products, __builtin_cpu_supports("avx512vnni"));
}
const LinearProducts* int4_products() {
  return where_possible(kInt4Products, __builtin_cpu_supports("avx512vnni"));
}

}  // namespace recurve::cpu

#else

namespace recurve::cpu {

const LinearProducts* int8_products() { return nullptr; }
const LinearProducts* int4_products() { return nullptr; }

}  // namespace recurve::cpu

#endif
