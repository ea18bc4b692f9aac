#include "kernels/formats/plain.h"

#include <cstring>

#include "kernels/bf16.h"
#include "kernels/check.h"
#include "kernels/formats/transpose.h"

namespace recurve {
namespace {

void pack_f32(const float* row, int64_t K, std::byte* data, std::byte*) {
  std::memcpy(data, row, static_cast<size_t>(K) * sizeof(float));
}

void unpack_f32(const std::byte* data, const std::byte*, int64_t K, float* row) {
  std::memcpy(row, data, static_cast<size_t>(K) * sizeof(float));
}

void pack_bf16(const float* row, int64_t K, std::byte* data, std::byte*) {
  for (int64_t k = 0; k < K; ++k) {
    const uint16_t value = f32_to_bf16(row[k]);
    std::memcpy(data + 2 * k, &value, 2);
  }
}

void unpack_bf16(const std::byte* data, const std::byte*, int64_t K, float* row) {
  for (int64_t k = 0; k < K; ++k) {
    uint16_t value;
    std::memcpy(&value, data + 2 * k, 2);
    row[k] = bf16_to_f32(value);
  }
}

template <typename T>
void transpose(const std::byte* data, const std::byte*, int64_t rows, int64_t K, std::byte* to,
               std::byte*) {
  transpose_values<T>(data, rows, K, to);
}

}  // namespace

const WeightFormat kF32Weights = {.name = "f32",
                                  .dtype = DType::kF32,
                                  .group = 1,
                                  .group_bytes = 4,
                                  .group_scale = 0,
                                  .pack = pack_f32,
                                  .unpack = unpack_f32,
                                  .transpose = transpose<uint32_t>};
const WeightFormat kBf16Weights = {.name = "bf16",
                                   .dtype = DType::kBF16,
                                   .group = 1,
                                   .group_bytes = 2,
                                   .group_scale = 0,
                                   .pack = pack_bf16,
                                   .unpack = unpack_bf16,
                                   .transpose = transpose<uint16_t>};

const WeightFormat& format_of(DType dtype) {
  CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  return dtype == DType::kF32 ? kF32Weights : kBf16Weights;
}

}  // namespace recurve
