#include "kernels/cuda/sm90/tensor_map.h"

#include <cuda_runtime_api.h>

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

}  // namespace

CUtensorMap tensor_map(const Matrix& matrix, int box_rows) {
  static const auto encode = find_encoder();
  CHECK(matrix.dtype == DType::kBF16 && matrix.K % 8 == 0);
  const cuuint64_t extents[] = {static_cast<cuuint64_t>(matrix.K),
                                static_cast<cuuint64_t>(matrix.N)};
  const cuuint64_t row_bytes[] = {static_cast<cuuint64_t>(matrix.K) * size_of(matrix.dtype)};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_rows)}, steps[] = {1, 1};
  CUtensorMap map{};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(matrix.data), extents,
             row_bytes, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(result == CUDA_SUCCESS);
  return map;
}

}  // namespace recurve::cuda::sm90
