#include "kernels/cuda/sm90/tensor_map.h"

#include <cuda_runtime_api.h>

#include <iterator>

#include "kernels/check.h"
#include "kernels/cuda/common/error.h"
#include "kernels/weight_format.h"

namespace recurve::cuda::sm90 {
namespace {

// Taken from the driver at run time: a program linked with it would not start where it is missing.
decltype(&cuTensorMapEncodeTiled) find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  abort_if_failed(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                   cudaEnableDefault, &found),
                  "search for cuTensorMapEncodeTiled");
  CHECK(found == cudaDriverEntryPointSuccess);
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

// strides: in bytes, of all dimensions but the first.
template <size_t kRank>
CUtensorMap encode(CUtensorMapDataType type, const void* data, const cuuint64_t (&extents)[kRank],
                   const cuuint64_t (&strides)[kRank - 1], const cuuint32_t (&box)[kRank],
                   CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  static const auto encoder = find_encoder();
  constexpr cuuint32_t kSteps[] = {1, 1, 1, 1};
  static_assert(kRank <= std::size(kSteps));
  CUtensorMap map{};
  const CUresult result =
      encoder(&map, type, kRank, const_cast<void*>(data), extents, strides, box, kSteps,
              CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(result == CUDA_SUCCESS);
  return map;
}

template <size_t kRank>
CUtensorMap encode(const Matrix& matrix, const cuuint64_t (&extents)[kRank],
                   const cuuint64_t (&strides)[kRank - 1], const cuuint32_t (&box)[kRank]) {
  CHECK(matrix.dtype == DType::kBF16 && matrix.K % 8 == 0);
  return encode<kRank>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, matrix.data, extents, strides, box);
}

}  // namespace

CUtensorMap tensor_map(const Matrix& matrix, int box_rows) {
  const auto K = static_cast<cuuint64_t>(matrix.K), N = static_cast<cuuint64_t>(matrix.N);
  return encode<2>(matrix, {K, N}, {K * sizeof(uint16_t)},
                   {kBoxK, static_cast<cuuint32_t>(box_rows)});
}

CUtensorMap packed_tensor_map(const Matrix& matrix, int box_rows, int groups) {
  const WeightFormat& format = *matrix.format;
  const int64_t width = groups * format.group_bytes;
  CHECK(format.group == kBoxK && (width == 32 || width == 64 || width == 128));
  const auto bytes = static_cast<cuuint64_t>(format.row_bytes(matrix.K));
  return encode<2>(CU_TENSOR_MAP_DATA_TYPE_UINT8, matrix.data,
                   {bytes, static_cast<cuuint64_t>(matrix.N)}, {bytes},
                   {static_cast<cuuint32_t>(width), static_cast<cuuint32_t>(box_rows)},
                   width == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                   : width == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                 : CU_TENSOR_MAP_SWIZZLE_32B);
}

CUtensorMap tensor_map(const Matrix& matrix, int box_rows, int boxes) {
  const auto K = static_cast<cuuint64_t>(matrix.K), N = static_cast<cuuint64_t>(matrix.N);
  CHECK(K % kBoxK == 0);
  return encode<3>(matrix, {kBoxK, N, K / kBoxK}, {K * sizeof(uint16_t), kBoxK * sizeof(uint16_t)},
                   {kBoxK, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(boxes)});
}

CUtensorMap line_map(const Matrix& matrix, int box_rows, int lines) {
  const int64_t bytes = format_of(matrix).row_bytes(matrix.K);
  CHECK(bytes % kLineBytes == 0);
  const auto row = static_cast<cuuint64_t>(bytes), N = static_cast<cuuint64_t>(matrix.N);
  return encode<3>(CU_TENSOR_MAP_DATA_TYPE_UINT8, matrix.data, {kLineBytes, N, row / kLineBytes},
                   {row, kLineBytes},
                   {kLineBytes, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(lines)});
}

CUtensorMap tensor_map(const float* values, int rows, int columns, int64_t stride, int box_rows) {
  return encode<2>(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, values,
                   {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)},
                   {static_cast<cuuint64_t>(stride) * sizeof(float)},
                   {kFloatBox, static_cast<cuuint32_t>(box_rows)});
}

CUtensorMap key_page_map(const PagedData& keys, int HK, int D) {
  CHECK(keys.dtype == DType::kBF16 && D % kBoxK == 0);
  return encode<3>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, keys.data,
                   {kPageTokens, static_cast<cuuint64_t>(HK) * static_cast<cuuint64_t>(D),
                    static_cast<cuuint64_t>(keys.pages)},
                   {kPageTokens * sizeof(uint16_t), static_cast<cuuint64_t>(keys.page_bytes)},
                   {kPageTokens, static_cast<cuuint32_t>(D), 1});
}

CUtensorMap value_page_map(const PagedData& values, int HK, int D) {
  CHECK(values.dtype == DType::kBF16 && D % kBoxK == 0);
  const auto boxes = static_cast<cuuint32_t>(D / kBoxK);
  return encode<4>(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, values.data,
                   {kBoxK, static_cast<cuuint64_t>(HK) * kPageTokens, boxes,
                    static_cast<cuuint64_t>(values.pages)},
                   {static_cast<cuuint64_t>(D) * sizeof(uint16_t), kBoxK * sizeof(uint16_t),
                    static_cast<cuuint64_t>(values.page_bytes)},
                   {kBoxK, kPageTokens, boxes, 1});
}

}  // namespace recurve::cuda::sm90
