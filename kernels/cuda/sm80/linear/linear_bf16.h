#pragma once
#include <span>

#include "kernels/cuda/sm80/capabilities.h"
#include "kernels/ops/linear.h"
#include "kernels/stream.h"

namespace recurve::cuda::sm80 {

// The linear op on the tensor cores, to the accuracy of fp32, of weights that linear_bf16_takes().
// Only an infinite weight differs: it gives NaN. The layers are plain (capabilities.h), have the
// same rows, and none reads what another writes. rows, N: at least 1.
void linear_bf16(std::span<const LinearArgs> layers, Stream& stream);

}  // namespace recurve::cuda::sm80
