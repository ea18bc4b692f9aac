#pragma once
#include "kernels/kernels.h"

namespace recurve::cuda::sm80 {

// Whether a thread takes four channels side by side: width 4, and everything begins at multiples of
// 16 bytes. Depends on the op's shape and place alone, so it is one arithmetic for all batches.
bool takes_four_channels(const CausalConv1dArgs& args);

// Where it does, and every sequence has one row: the whole op.
void causal_conv1d_steps(const CausalConv1dArgs& args, Stream& stream);

}  // namespace recurve::cuda::sm80
