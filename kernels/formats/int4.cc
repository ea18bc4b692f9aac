#include "kernels/formats/int4.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <tuple>
#include <utility>

#include "kernels/bf16.h"
#include "kernels/formats/group.h"
#include "kernels/formats/transpose.h"

namespace recurve {
namespace {

constexpr int64_t kBytes = kInt4Group / 2;
constexpr int64_t kScaleBytes = 2 * sizeof(uint16_t);
constexpr int64_t kWords = 16;  // of 16 bits
constexpr float kSmallestStep = 1e-30f;

using Group = std::array<float, kInt4Group>;

// In eight lanes first, which the compiler may compute side by side.
float sum_of(const Group& values) {
  std::array<float, 8> lanes = {};
  for (size_t k = 0; k < values.size(); k += 8) {
    for (size_t lane = 0; lane < 8; ++lane) lanes[lane] += values[k + lane];
  }
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

struct Line {
  uint16_t s = 0, m = 0;  // bits of bf16
  Group q = {};
};

// The nearest q for a scale and a minimum, which are rounded first.
Line quantised(const Group& w, float s, float m) {
  Line line{.s = f32_to_bf16(s), .m = f32_to_bf16(m)};
  const float step = bf16_to_f32(line.s), least = bf16_to_f32(line.m);
  const float inverse = step >= kSmallestStep ? 1.0f / step : 0.0f;
  for (size_t k = 0; k < w.size(); ++k) {
    line.q[k] = std::clamp(nearest((w[k] - least) * inverse), 0.0f, 15.0f);
  }
  return line;
}

float squared_error(const Group& w, const Line& line) {
  const float step = bf16_to_f32(line.s), least = bf16_to_f32(line.m);
  Group squares;
  for (size_t k = 0; k < w.size(); ++k) {
    const float error = (line.q[k] * step + least) - w[k];
    squares[k] = error * error;
  }
  return sum_of(squares);
}

// Scale and minimum of the least squared error for these q.
std::pair<float, float> fitted(const Group& w, const Group& q, float s, float m) {
  constexpr auto kCount = static_cast<float>(kInt4Group);
  Group squares, products;
  for (size_t k = 0; k < w.size(); ++k) {
    squares[k] = q[k] * q[k];
    products[k] = q[k] * w[k];
  }
  const float sum_q = sum_of(q), sum_w = sum_of(w);
  const float spread = kCount * sum_of(squares) - sum_q * sum_q;
  if (!(spread > 0)) return {s, m};
  const float scale = (kCount * sum_of(products) - sum_q * sum_w) / spread;
  return {scale, (sum_w - scale * sum_q) / kCount};
}

Line best_line(const Group& w) {
  const auto [low, high] = std::ranges::minmax(w);
  const float middle = high * 0.5f + low * 0.5f;
  Line best;
  float least = 0;
  bool first = true;
  for (const float share : {1.0f, 0.9f, 0.8f}) {
    const float half = (high * 0.5f - low * 0.5f) * share;
    float s = half * 2 / 15, m = middle - half;
    for (int round = 0; round < 3; ++round) {
      const Line line = quantised(w, s, m);
      const float error = squared_error(w, line);
      if (first || error < least) {
        best = line;
        least = error;
        first = false;
      }
      std::tie(s, m) = fitted(w, line.q, s, m);
    }
  }
  return best;
}

void pack_group(const Group& w, std::byte* data, std::byte* scales) {
  Line line;
  if (can_pack(w)) {
    line = best_line(w);
  } else {
    line.s = line.m = kNanScale;
  }
  std::array<uint16_t, kWords> words = {};
  for (size_t k = 0; k < w.size(); ++k) {
    const auto q = static_cast<unsigned>(line.q[k]);
    words[k % kWords] = static_cast<uint16_t>(words[k % kWords] | q << 4 * (k / kWords));
  }
  std::memcpy(data, words.data(), kBytes);
  std::memcpy(scales, &line.s, sizeof(line.s));
  std::memcpy(scales + sizeof(line.s), &line.m, sizeof(line.m));
}

void unpack_group(const std::byte* data, const std::byte* scales, Group& w) {
  std::array<uint16_t, kWords> words;
  std::array<uint16_t, 2> line;
  std::memcpy(words.data(), data, kBytes);
  std::memcpy(line.data(), scales, kScaleBytes);
  const float step = bf16_to_f32(line[0]), least = bf16_to_f32(line[1]);
  for (size_t k = 0; k < w.size(); ++k) {
    const auto q = static_cast<float>(words[k % kWords] >> 4 * (k / kWords) & 15);
    w[k] = q * step + least;
  }
}

void pack(const float* row, int64_t K, std::byte* data, std::byte* scales) {
  pack_groups<kInt4Group>(row, K, data, kBytes, scales, kScaleBytes, pack_group);
}

void unpack(const std::byte* data, const std::byte* scales, int64_t K, float* row) {
  unpack_groups<kInt4Group>(data, kBytes, scales, kScaleBytes, K, row, unpack_group);
}

// A group of kInt4Outputs rows: of each column 16 bytes, `step` apart.
void transpose_group(const std::byte* data, int64_t row_bytes, int64_t step, std::byte* to) {
  std::array<std::array<uint16_t, kWords>, kInt4Outputs> rows;
  for (size_t n = 0; n < rows.size(); ++n) {
    std::memcpy(rows[n].data(), data + static_cast<int64_t>(n) * row_bytes, kBytes);
  }
  for (size_t k = 0; k < kInt4Group; ++k, to += step) {
    const auto q = [&](size_t n) { return rows[n][k % kWords] >> 4 * (k / kWords) & 15; };
    constexpr size_t kHalf = kInt4Outputs / 2;
    for (size_t j = 0; j < kHalf; ++j) to[j] = static_cast<std::byte>(q(j) | q(kHalf + j) << 4);
  }
}

void transpose(const std::byte* data, const std::byte* scales, int64_t rows, int64_t K,
               std::byte* to, std::byte* scales_to) {
  const int64_t row_bytes = kInt4Weights.row_bytes(K), step = kInt4Weights.column_bytes(rows);
  const int64_t groups = kInt4Weights.groups(K);
  for (int64_t row = 0; row < rows; row += kInt4Outputs) {
    for (int64_t g = 0; g < groups; ++g) {
      transpose_group(data + row * row_bytes + g * kBytes, row_bytes, step,
                      to + g * kInt4Group * step + kInt4Weights.column_bytes(row));
    }
  }
  transpose_values<uint32_t>(scales, rows, groups, scales_to);
}

}  // namespace

const WeightFormat kInt4Weights = {.name = "int4",
                                   .dtype = DType::kPacked,
                                   .group = kInt4Group,
                                   .group_bytes = kBytes,
                                   .group_scale = kScaleBytes,
                                   .pack = pack,
                                   .unpack = unpack,
                                   .outputs_together = kInt4Outputs,
                                   .transpose = transpose};

}  // namespace recurve
