#pragma once
#include <cstdint>

#include "kernels/ops/causal_conv1d.h"
#include "kernels/ops/ssd.h"
#include "kernels/tensor.h"

// Which form of a kernel an op's arguments get: questions to their shapes and places alone, so that
// a host without a GPU can answer them.
namespace recurve::cuda::sm80 {

inline bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// Weights in bf16 whose rows begin at multiples of 16 bytes.
inline bool linear_bf16_takes(const Matrix& W) { return W.dtype == DType::kBF16 && W.K % 8 == 0; }

// The width of the convolution that threads take four channels side by side of.
constexpr int kWidthOfFourChannels = 4;

// Whether a thread takes four channels side by side: everything begins at multiples of 16 bytes.
// Depends on the op's shape and place alone, so it is one arithmetic for all batches.
inline bool takes_four_channels(const CausalConv1dArgs& a) {
  return a.width == kWidthOfFourChannels && a.D % 4 == 0 && a.x_stride % 4 == 0 && aligned(a.x) &&
         aligned(a.y) && aligned(a.y_bf16) && aligned(a.w) && aligned(a.state) && aligned(a.bias);
}

// Whether the state space leaves the norm of its rows to the layer that reads them: it does in
// single steps.
inline bool ssd_defers_norm(const SsdArgs& args) {
  return args.seqs.max_len == 1 && args.P % DeferredRmsNorm::kSquares == 0;
}

}  // namespace recurve::cuda::sm80
