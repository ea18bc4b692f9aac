#pragma once
#include "kernels/backend.h"
#include "kernels/cuda/sm90/linear/linear_plan.h"
#include "kernels/cuda/sm90/linear/linear_tile.cuh"

// Linear layers of so many rows that products are what takes time: see linear_persistent.cuh.
namespace recurve::cuda::sm90 {

// Launches the blocks that plan_persistent() has planned. made: W is what the kernel before writes,
// so nothing of it may be read ahead.
void launch_persistent(const PersistentPlan& plan, const LinearArgs& args, const Rows& x, bool made,
                       Stream& stream);

}  // namespace recurve::cuda::sm90
