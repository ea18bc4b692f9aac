#pragma once
#include <span>

#include "kernels/cuda/sm90/linear/linear_plan.h"
#include "kernels/stream.h"

// Linear layers side by side in one launch.
namespace recurve::cuda::sm90 {

// GpuRoom::clusters_at_once of the kernels for weights in bf16, which linear.cu has.
int plain_clusters_at_once(const TilingShape& tiling, int blocks);

// Whether the layer may share a launch.
bool joins_group(const LinearArgs& layer);

// Computes such layers, of the same rows, to the same bits as one after the other. None reads what
// another writes.
void linear_group(std::span<const LinearArgs> layers, Stream& stream);

}  // namespace recurve::cuda::sm90
