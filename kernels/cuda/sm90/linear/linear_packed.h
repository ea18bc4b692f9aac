#pragma once
#include "kernels/backend.h"
#include "kernels/cuda/sm90/linear/linear_tile.cuh"

// Linear layers of weights that are packed: linear_held.cuh says how they are taken.
namespace recurve::cuda::sm90 {

void linear_int8(const LinearArgs& args, const Rows& x, Stream& stream);
void linear_int4(const LinearArgs& args, const Rows& x, Stream& stream);

}  // namespace recurve::cuda::sm90
