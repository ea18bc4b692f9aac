#pragma once
#include "kernels/check.h"
#include "kernels/cuda/common/math.cuh"
#include "kernels/formats/int4.h"
#include "kernels/formats/int8.h"
#include "kernels/tensor.h"

// A row of a weight matrix, read value by value as WeightFormat::unpack does, of any alignment that
// the format's values have. int8 and int4 lie as kernels/formats/int8.h and int4.h say.
namespace recurve::cuda::sm80 {

struct F32Row {
  const float* values;
  __device__ F32Row(const Matrix& W, int64_t n)
      : values(static_cast<const float*>(W.data) + n * W.K) {}
  __device__ float operator[](int64_t k) const { return values[k]; }
};

struct Bf16Row {
  const uint16_t* values;
  __device__ Bf16Row(const Matrix& W, int64_t n)
      : values(static_cast<const uint16_t*>(W.data) + n * W.K) {}
  __device__ float operator[](int64_t k) const { return widen_bf16(values[k]); }
};

// The bf16 at a place of any alignment.
__device__ inline float bf16_at(const uint8_t* bits) {
  return widen_bf16(static_cast<uint16_t>(bits[0] | bits[1] << 8));
}

constexpr int64_t kPackedGroup = kInt8Group;  // columns that share a scale
static_assert(kPackedGroup == kInt4Group);
__host__ __device__ inline int64_t packed_groups(int64_t K) {
  return (K + kPackedGroup - 1) / kPackedGroup;
}

struct Int8Row {
  const int8_t* q;
  const uint8_t* scales;
  __device__ Int8Row(const Matrix& W, int64_t n)
      : q(static_cast<const int8_t*>(W.data) + n * packed_groups(W.K) * kPackedGroup),
        scales(static_cast<const uint8_t*>(W.scales) + n * packed_groups(W.K) * 2) {}
  __device__ float operator[](int64_t k) const {
    return bf16_at(scales + k / kPackedGroup * 2) * static_cast<float>(q[k]);
  }
};

struct Int4Row {
  const uint8_t* q;
  const uint8_t* lines;  // scale and minimum of each group
  __device__ Int4Row(const Matrix& W, int64_t n)
      : q(static_cast<const uint8_t*>(W.data) + n * packed_groups(W.K) * (kPackedGroup / 2)),
        lines(static_cast<const uint8_t*>(W.scales) + n * packed_groups(W.K) * 4) {}
  __device__ float operator[](int64_t k) const {
    const auto group = k / kPackedGroup;
    const int place = static_cast<int>(k % kPackedGroup), nibble = place / 16;
    const int byte = q[group * (kPackedGroup / 2) + place % 16 * 2 + nibble / 2];
    const uint8_t* line = lines + group * 4;
    // The product is exact, so it does not matter whether it is rounded before the sum.
    return static_cast<float>(byte >> nibble % 2 * 4 & 15) * bf16_at(line) + bf16_at(line + 2);
  }
};

// Calls f.operator()<Row>() with the rows of the matrix.
template <typename F>
void with_rows(const Matrix& W, F f) {
  if (W.format == &kInt8Weights) return f.template operator()<Int8Row>();
  if (W.format == &kInt4Weights) return f.template operator()<Int4Row>();
  if (W.dtype == DType::kBF16) return f.template operator()<Bf16Row>();
  CHECK(W.dtype == DType::kF32);
  f.template operator()<F32Row>();
}

}  // namespace recurve::cuda::sm80
