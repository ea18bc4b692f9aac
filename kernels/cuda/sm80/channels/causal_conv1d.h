#pragma once
#include "kernels/cuda/sm80/capabilities.h"
#include "kernels/kernels.h"

namespace recurve::cuda::sm80 {

// Where takes_four_channels(args), and every sequence has one row: the whole op.
void causal_conv1d_steps(const CausalConv1dArgs& args, Stream& stream);

}  // namespace recurve::cuda::sm80
