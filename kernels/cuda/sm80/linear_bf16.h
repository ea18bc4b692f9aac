#pragma once
#include <cuda_runtime_api.h>

#include "kernels/cuda/sm80/capabilities.h"
#include "kernels/ops/linear.h"

namespace recurve::cuda::sm80 {

// The linear op on the tensor cores, to the accuracy of fp32, of weights that linear_bf16_takes().
// Only an infinite weight differs: it gives NaN. rows, N: at least 1.
void linear_bf16(const LinearArgs& args, cudaStream_t stream);

}  // namespace recurve::cuda::sm80
