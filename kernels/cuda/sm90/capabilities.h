#pragma once
#include "kernels/cuda/sm80/capabilities.h"
#include "kernels/ops/linear.h"

// As sm80/capabilities.h.
namespace recurve::cuda::sm90 {

// Of more rows a kernel of their own finds the scales of a norm that is begun.
constexpr int kMostRowsOfBegunNorm = 64;

// Of more rows the states of a convolution keep the end of the layer longer than a kernel of their
// own takes.
constexpr int kMostConvolved = 16;

// Small matrices are left to the kernel that rounds no activation: they cost little either way, and
// the models they make are the ones that rounding would show in. Which kernel takes a matrix
// depends on the matrix alone, never on the rows.
constexpr int64_t kSmallMatrix = 1 << 19;
inline bool linear_takes(const Matrix& W) {
  return sm80::linear_bf16_takes(W) && W.N * W.K >= kSmallMatrix;
}

// Whether the layer's kernel, where it takes the matrix, can end with this convolution.
inline bool can_end_with(const LinearArgs& args, const CausalConv1dArgs& conv) {
  return conv.seqs.max_len == 1 && args.rows <= kMostConvolved && args.W.N % 4 == 0 &&
         (conv.x - args.y) % 4 == 0 && sm80::aligned(args.y) && sm80::aligned(args.bias) &&
         sm80::takes_four_channels(conv);
}

inline bool linear_convolves(const LinearArgs& args, const CausalConv1dArgs& conv) {
  return linear_takes(args.W) && can_end_with(args, conv);
}

}  // namespace recurve::cuda::sm90
