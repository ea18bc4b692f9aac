#pragma once
#include <optional>

#include "kernels/backend.h"
#include "kernels/cuda/sm90/linear_tile.cuh"

// Linear layers of so many rows that products are what takes time: see linear_persistent.cuh.
namespace recurve::cuda::sm90 {

// Tiles of so many rows of W, with these blocks to a cluster, and about how long they take, in ns.
struct PersistentPlan {
  int tile_m, sharers;
  int64_t time;
};

// The best plan, or none where rows are few or the layer is out of the ordinary.
std::optional<PersistentPlan> plan_persistent(const LinearArgs& args, Stream& stream);
void launch_persistent(const PersistentPlan& plan, const LinearArgs& args, const Rows& x,
                       Stream& stream);

}  // namespace recurve::cuda::sm90
