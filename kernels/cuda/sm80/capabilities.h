#pragma once
#include <cstdint>

#include "kernels/ops/causal_conv1d.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/rwkv7.h"
#include "kernels/ops/ssd.h"
#include "kernels/ops/token_shift.h"
#include "kernels/tensor.h"

// Which form of a kernel an op's arguments get: questions to their shapes and places alone, so that
// a host without a GPU can answer them.
namespace recurve::cuda::sm80 {

inline bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// Weights in bf16 whose rows begin at multiples of 16 bytes.
inline bool linear_bf16_takes(const Matrix& W) { return W.dtype == DType::kBF16 && W.K % 8 == 0; }

// Whether rows of experts' weights and of x begin where the tensor cores' kernel reads them.
// Depends on the matrix alone: all rows are summed in one order.
inline bool experts_take_tiles(const Matrix& W) {
  if (W.format == nullptr) return linear_bf16_takes(W) && aligned(W.data);
  return W.K % 4 == 0 && aligned(W.data) && aligned(W.scales);
}

// Whether a layer asks for nothing but its product, a bias, a residual and an activation, of rows
// that are as they are to be multiplied.
inline bool is_plain(const LinearArgs& a) {
  return a.norm == nullptr && !a.swiglu && a.soft_cap == 0 && !a.conv && a.next.x == nullptr &&
         a.deferred.x == nullptr;
}

// Whether a plain layer can end with its activation: there are few that kernels know.
inline bool can_activate(const LinearArgs& a) {
  const bool known = a.activation == Activation::kSigmoid || a.activation == Activation::kTanh ||
                     a.activation == Activation::kSquaredRelu;
  return known && is_plain(a) && a.residual == nullptr;
}
inline bool linear_activates(const LinearArgs& a) {
  return linear_bf16_takes(a.W) && can_activate(a);
}

// Whether the token shift norms its rows first: in single steps, a row a block.
constexpr int kMostNormedByShift = 4096;
inline bool token_shift_norms(const TokenShiftArgs& a) {
  return a.seqs.max_len == 1 && a.D <= kMostNormedByShift && a.x_stride == a.D;
}

// Channels of the heads of RWKV-7 that there are in public, which have separate kernels where
// everything begins at multiples of 16 bytes.
constexpr int kWholeRwkv7 = 64;
inline bool rwkv7_is_whole(const Rwkv7Args& a) {
  const bool places = aligned(a.r) && aligned(a.lw) && aligned(a.k) && aligned(a.v) &&
                      aligned(a.kk) && aligned(a.alpha) && aligned(a.o) && aligned(a.S.data);
  return a.N == kWholeRwkv7 && a.stride % 4 == 0 && places;
}
// Whether its recurrence goes with the gate before it and the norm behind it.
inline bool rwkv7_cells(const Rwkv7Args& a) {
  return a.seqs.max_len == 1 && rwkv7_is_whole(a) && a.stride == a.H * a.N;
}

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
