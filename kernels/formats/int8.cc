#include "kernels/formats/int8.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/bf16.h"
#include "kernels/formats/group.h"
#include "kernels/formats/transpose.h"

namespace recurve {
namespace {

using Group = std::array<float, kInt8Group>;

void pack_group(const Group& w, std::byte* data, std::byte* scale) {
  std::array<int8_t, kInt8Group> q;
  float largest = 0;
  for (const float value : w) largest = std::max(largest, std::fabs(value));
  uint16_t s = f32_to_bf16(largest / 127.0f);
  if (!can_pack(w)) {
    s = kNanScale;
    q.fill(1);
  } else if (s == 0) {
    q.fill(0);
  } else {
    const float step = bf16_to_f32(s);
    for (size_t k = 0; k < w.size(); ++k) {
      q[k] = static_cast<int8_t>(std::clamp(nearest(w[k] / step), -127.0f, 127.0f));
    }
  }
  std::memcpy(data, q.data(), q.size());
  std::memcpy(scale, &s, sizeof(s));
}

void unpack_group(const std::byte* data, const std::byte* scale, Group& w) {
  std::array<int8_t, kInt8Group> q;
  uint16_t s;
  std::memcpy(q.data(), data, q.size());
  std::memcpy(&s, scale, sizeof(s));
  for (size_t k = 0; k < w.size(); ++k) w[k] = bf16_to_f32(s) * static_cast<float>(q[k]);
}

void pack(const float* row, int64_t K, std::byte* data, std::byte* scales) {
  pack_groups<kInt8Group>(row, K, data, kInt8Group, scales, sizeof(uint16_t), pack_group);
}

void unpack(const std::byte* data, const std::byte* scales, int64_t K, float* row) {
  unpack_groups<kInt8Group>(data, kInt8Group, scales, sizeof(uint16_t), K, row, unpack_group);
}

void transpose(const std::byte* data, const std::byte* scales, int64_t rows, int64_t K,
               std::byte* to, std::byte* scales_to) {
  const int64_t groups = kInt8Weights.groups(K);
  transpose_values<int8_t>(data, rows, groups * kInt8Group, to);
  transpose_values<uint16_t>(scales, rows, groups, scales_to);
}

}  // namespace

const WeightFormat kInt8Weights = {.name = "int8",
                                   .dtype = DType::kPacked,
                                   .group = kInt8Group,
                                   .group_bytes = kInt8Group,
                                   .group_scale = sizeof(uint16_t),
                                   .pack = pack,
                                   .unpack = unpack,
                                   .transpose = transpose};

}  // namespace recurve
