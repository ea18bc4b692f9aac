// Products of x in bf16 with weights in bf16, on AVX512-BF16, whose one instruction adds two
// products to each of 16 sums. Tiles are those of dot_tile-inl.h with twice the columns in a
// vector: lane l takes the columns 2 l and 2 l + 1 of every 32 in their order, and then the lanes
// are added along one fixed tree.
#include <hwy/base.h>

#include <algorithm>
#include <cstring>

#include "kernels/ceil_div.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/linear/row_tiles.h"
#include "kernels/cpu/products/narrow_products.h"
#include "kernels/cpu/targets.h"

// After the choice of instruction sets.
#include "kernels/cpu/products/where_possible.h"

#if HWY_ARCH_X86_64 && (HWY_ATTAINABLE_TARGETS & HWY_AVX3)
HWY_PUSH_ATTRIBUTES("avx512f,avx512vl,avx512dq,avx512bw,avx512bf16,avx2,fma,f16c,bmi,bmi2")
#include <immintrin.h>

namespace recurve::cpu {
namespace {

constexpr int64_t kColumns = 32;           // of a vector
constexpr int kRows = 6;                   // of a tile, with four outputs
constexpr int64_t kMemoryBytes = 4 << 20;  // a matrix of this size is taken to come from memory

int64_t row_bytes(int64_t K) { return ceil_div(K, kColumns) * 64; }

void round_row(const float* x, int64_t K, int64_t, std::byte* to) {
  for (int64_t k = 0; k < K; k += 16, to += 32) {
    const auto some = static_cast<__mmask16>((1u << std::min<int64_t>(K - k, 16)) - 1);
    const __m256bh narrow = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(some, x + k));
    std::memcpy(to, &narrow, sizeof(narrow));
  }
  if (K % kColumns != 0 && K % kColumns <= 16) std::memset(to, 0, 32);
}

__m512bh load(const uint16_t* from, int64_t count) {
  const auto some = static_cast<__mmask32>(count < kColumns ? (1u << count) - 1 : ~0u);
  return (__m512bh)_mm512_maskz_loadu_epi16(some, from);
}

// The sums of the lanes of a, b, c and d.
__m128 sums_of_lanes(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  const __m512 all =
      _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

// ROWS rows and the outputs [n, n + OUTPUTS) as far as they exist. fetch: what follows their
// weights, on the way.
template <int ROWS, int OUTPUTS>
void tile(const LinearArgs& a, const std::byte* rounded, int64_t row, int64_t n, bool fetch) {
  const int64_t K = a.W.K, stride = row_bytes(K);
  const uint16_t* w[OUTPUTS];
  HWY_UNROLL(8)
  for (int j = 0; j < OUTPUTS; ++j) {
    w[j] = static_cast<const uint16_t*>(a.W.data) + std::min(n + j, a.W.N - 1) * K;
  }
  const std::byte* x = rounded + row * stride;
  __m512 sum[ROWS][OUTPUTS];
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) {
    HWY_UNROLL(8)
    for (int j = 0; j < OUTPUTS; ++j) sum[r][j] = _mm512_setzero_ps();
  }
  const auto add = [&](int64_t k, int64_t count) __attribute__((always_inline)) {
    __m512bh xs[ROWS];
    HWY_UNROLL(8)
    for (int r = 0; r < ROWS; ++r) {
      xs[r] = (__m512bh)_mm512_load_si512(x + r * stride + 2 * k);
      asm("" : "+v"(xs[r]));  // compilers would load it again for each product
    }
    HWY_UNROLL(8)
    for (int j = 0; j < OUTPUTS; ++j) {
      const __m512bh ws = load(w[j] + k, count);
      HWY_UNROLL(8)
      for (int r = 0; r < ROWS; ++r) sum[r][j] = _mm512_dpbf16_ps(sum[r][j], xs[r], ws);
    }
  };
  int64_t k = 0;
  if (fetch) {
    const auto* after = reinterpret_cast<const std::byte*>(w[0]) + FetchFar::kAhead;
    for (; k + kColumns <= K; k += kColumns, after += OUTPUTS * kLine) {
      fetch_lines<OUTPUTS>(after);
      add(k, kColumns);
    }
  }
  for (; k + kColumns <= K; k += kColumns) add(k, kColumns);
  if (k < K) add(k, K - k);
  HWY_UNROLL(8)
  for (int r = 0; r < ROWS; ++r) {
    float sums[OUTPUTS];
    HWY_UNROLL(8)
    for (int j = 0; j < OUTPUTS; j += 4) {
      _mm_storeu_ps(sums + j,
                    sums_of_lanes(sum[r][j], sum[r][j + 1], sum[r][j + 2], sum[r][j + 3]));
    }
    finish_outputs(a, row + r, n, std::min<int64_t>(OUTPUTS, a.W.N - n), sums);
  }
}

template <int ROWS>
void row_tile(const LinearArgs& a, const std::byte* rounded, int64_t row, int64_t begin,
              int64_t end, bool fetch) {
  constexpr int kOutputs = ROWS <= 3 ? 8 : 4;
  for (int64_t n = begin; n < end; n += kOutputs) {
    tile<ROWS, kOutputs>(a, rounded, row, n, fetch);
  }
}

void bf16_block(const LinearArgs& a, const std::byte* rounded, int64_t row_begin, int64_t row_end,
                int64_t begin, int64_t end) {
  // Only the first rows find their weights in memory; the next find them in the cache.
  const bool from_memory = 2 * a.W.N * a.W.K >= kMemoryBytes;
  for_row_tiles<kRows>(row_begin, row_end, kRows, [&]<int ROWS>(int64_t row) {
    row_tile<ROWS>(a, rounded, row, begin, end, from_memory && row == row_begin);
  });
}

constexpr LinearProducts kBf16Products{
    .block = bf16_block, .rounded_bytes = row_bytes, .round = round_row};

}  // namespace
}  // namespace recurve::cpu
HWY_POP_ATTRIBUTES

namespace recurve::cpu {

const LinearProducts* bf16_products() {
  return where_possible(kBf16Products, __builtin_cpu_supports("avx512bf16"));
}

}  // namespace recurve::cpu

#else

namespace recurve::cpu {

const LinearProducts* bf16_products() { return nullptr; }

}  // namespace recurve::cpu

#endif
