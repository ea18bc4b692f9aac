#include "kernels/reference/row.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace recurve::reference {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

constexpr size_t kBlock = 256;

// Four numbers at a time, as g++ and Clang offer it: left to itself, g++ 12 keeps this loop scalar.
using Floats [[gnu::vector_size(16)]] = float;
using Masks [[gnu::vector_size(16)]] = int32_t;
constexpr size_t kLanes = 4;
constexpr size_t kVectors = 4;  // independent chains

struct BlockMax {
  float value;
  bool nan;
};

// x: (n), n a multiple of kLanes * kVectors.
BlockMax block_max(const float* x, size_t n) {
  Floats max[kVectors];
  Masks nan[kVectors] = {};
  for (Floats& m : max) m = Floats{} + kMinusInfinity;
  for (size_t i = 0; i < n; i += kLanes * kVectors) {
    for (size_t j = 0; j < kVectors; ++j) {
      Floats v;
      std::memcpy(&v, x + i + j * kLanes, sizeof v);
      max[j] = v > max[j] ? v : max[j];
      nan[j] |= v != v;
    }
  }
  BlockMax all{kMinusInfinity, false};
  for (size_t j = 0; j < kVectors; ++j) {
    for (size_t k = 0; k < kLanes; ++k) {
      all.value = std::max(all.value, max[j][k]);
      all.nan |= nan[j][k] != 0;
    }
  }
  return all;
}

// Inlined into functions for several instruction sets. None of those sets has fused multiply-add,
// which would round differently.
[[gnu::always_inline]] inline uint64_t weigh_body(const float* row, size_t n, float max,
                                                  double inverse_temperature, uint64_t* weights) {
  uint64_t sum = 0;
  float x[kBlock];
  uint64_t w[kBlock];
  for (size_t begin = 0; begin < n; begin += kBlock) {
    const size_t size = std::min(kBlock, n - begin);
    std::copy_n(row + begin, size, x);
    std::fill(x + size, x + kBlock, kMinusInfinity);
    for (size_t i = 0; i < kBlock; ++i) {
      w[i] = weight_of(exp_nonpositive(-nats_below(x[i], max, inverse_temperature)));
    }
    for (size_t i = 0; i < kBlock; ++i) sum += w[i];
    if (weights) std::copy_n(w, size, weights + begin);
  }
  return sum;
}

#if defined(__x86_64__) && defined(__GNUC__)
[[gnu::target("avx2")]] uint64_t weigh_avx2(const float* row, size_t n, float max,
                                            double inverse_temperature, uint64_t* weights) {
  return weigh_body(row, n, max, inverse_temperature, weights);
}
#endif

}  // namespace

RowMax row_max(std::span<const float> row) {
  RowMax best{kMinusInfinity, row.empty() ? -1 : 0, false};
  size_t best_begin = 0;
  for (size_t begin = 0; begin < row.size(); begin += kBlock) {
    const size_t size = std::min(kBlock, row.size() - begin);
    const size_t whole = size - size % (kLanes * kVectors);
    BlockMax block = block_max(row.data() + begin, whole);
    for (size_t i = begin + whole; i < begin + size; ++i) {
      block.value = std::max(block.value, row[i]);
      block.nan |= row[i] != row[i];
    }
    best.nan |= block.nan;
    if (block.value > best.value) {
      best.value = block.value;
      best_begin = begin;
    }
  }
  if (best.value > kMinusInfinity) {
    const auto from = row.begin() + static_cast<ptrdiff_t>(best_begin);
    best.id = static_cast<int32_t>(std::find(from, row.end(), best.value) - row.begin());
  }
  return best;
}

uint64_t weigh(std::span<const float> row, float max, double inverse_temperature,
               uint64_t* weights) {
#if defined(__x86_64__) && defined(__GNUC__)
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if (avx2) return weigh_avx2(row.data(), row.size(), max, inverse_temperature, weights);
#endif
  return weigh_body(row.data(), row.size(), max, inverse_temperature, weights);
}

}  // namespace recurve::reference
