#pragma once
#include "kernels/ops/op.h"
#include "kernels/ops/ragged.h"

namespace recurve {

// Depthwise convolution over the rows of a sequence, each row seeing itself and the width - 1 rows
// before it:
//   y[t, d] = act( bias[d] + sum_{j < width} w[d, j] x[t - (width - 1) + j, d] )
// so w[d, width - 1] meets the row itself. Rows before the first of this call come from the state,
// which is left holding the last width - 1 rows. The sum is in the same order wherever its rows
// come from, so any cut of a sequence between calls gives the same bits.
// Source: Mamba (Gu and Dao 2023), sec. 3.4; PyTorch's nn.Conv1d with groups = channels.
struct CausalConv1dArgs {
  Ragged seqs;
  int D;              // channels
  int width;          // 2 to 4 in every public model; at least 2
  bool silu;          // act: silu(x) = x sigmoid(x); otherwise none
  int x_stride;       // floats from a row of x to the next
  const float* x;     // (rows, D)
  const float* w;     // (D, width)
  const float* bias;  // (D) or null
  float* state;       // (slots, D, width - 1) oldest to newest, read and written in place
  float* y;           // (rows, D), dense; does not overlap x
  // (rows, D) y once more, rounded, or null; where this backend's linear op takes bf16
  uint16_t* y_bf16 = nullptr;
};

struct CausalConv1dKernel {
  static constexpr const char* kName = "causal_conv1d";
  Op<CausalConv1dArgs> causal_conv1d;
  static constexpr auto kOp = &CausalConv1dKernel::causal_conv1d;
};

}  // namespace recurve
