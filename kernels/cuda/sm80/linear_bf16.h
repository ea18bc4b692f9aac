#pragma once
#include <cuda_runtime_api.h>

#include "kernels/ops/linear.h"

namespace recurve::cuda::sm80 {

// Weights in bf16 whose rows begin at multiples of 16 bytes.
inline bool linear_bf16_takes(const Matrix& W) { return W.dtype == DType::kBF16 && W.K % 8 == 0; }

// The linear op on the tensor cores, to the accuracy of fp32. Only an infinite weight differs: it
// gives NaN. rows, N: at least 1.
void linear_bf16(const LinearArgs& args, cudaStream_t stream);

}  // namespace recurve::cuda::sm80
