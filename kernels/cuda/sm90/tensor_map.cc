#include "kernels/cuda/sm90/tensor_map.h"

#include <cuda_runtime_api.h>

#include <iterator>

#include "kernels/check.h"
#include "kernels/cuda/common/error.h"

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
                   const cuuint64_t (&strides)[kRank - 1], const cuuint32_t (&box)[kRank]) {
  static const auto encoder = find_encoder();
  constexpr cuuint32_t kSteps[] = {1, 1, 1};
  static_assert(kRank <= std::size(kSteps));
  CUtensorMap map{};
  const CUresult result =
      encoder(&map, type, kRank, const_cast<void*>(data), extents, strides, box, kSteps,
              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
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

CUtensorMap tensor_map(const Matrix& matrix, int box_rows, int boxes) {
  const auto K = static_cast<cuuint64_t>(matrix.K), N = static_cast<cuuint64_t>(matrix.N);
  CHECK(K % kBoxK == 0);
  return encode<3>(matrix, {kBoxK, N, K / kBoxK}, {K * sizeof(uint16_t), kBoxK * sizeof(uint16_t)},
                   {kBoxK, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(boxes)});
}

CUtensorMap tensor_map(const float* values, int rows, int columns, int64_t stride, int box_rows) {
  return encode<2>(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, values,
                   {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)},
                   {static_cast<cuuint64_t>(stride) * sizeof(float)},
                   {kFloatBox, static_cast<cuuint32_t>(box_rows)});
}

}  // namespace recurve::cuda::sm90
