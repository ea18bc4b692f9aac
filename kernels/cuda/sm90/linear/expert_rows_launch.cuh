#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>

#include "kernels/cuda/common/launch.h"
#include "kernels/cuda/sm90/linear/expert_rows.cuh"
#include "kernels/weight_format.h"

// How the kernel of expert_rows.cuh is launched.
namespace recurve::cuda::sm90::expert {

// What a block takes of a multiprocessor's memory, and the fewest stages of a warp's ring.
constexpr size_t kMostShared = size_t{200} << 10;
constexpr int kLeastStages = 3;

// Whether the copy engine takes rows of W and the items of the window.
inline bool takes(const ExpertLinearArgs& a, const Window& window, int rows_of_tile) {
  return format_of(a.W).row_bytes(a.W.K) % kLineBytes == 0 && window.N % kItemRows == 0 &&
         window.count % rows_of_tile == 0 && window.first % kItemRows == 0;
}

// How blocks divide their memory; none where these products are left to other kernels: the rows of
// x do not fit, or each block would have one item.
template <typename Weights, int kR>
std::optional<RowsPlan> plan_rows(const ExpertLinearArgs& a, const Window& window, int blocks) {
  using Memory = RowsMemory<Weights, kR * kTileRows>;
  const int rows_of_tile = a.weight == nullptr ? kBoxRows : kItemRows;
  if (!takes(a, window, rows_of_tile)) return std::nullopt;
  RowsPlan plan{};
  plan.lines = static_cast<int>(format_of(a.W).row_bytes(a.W.K) / kLineBytes);
  plan.groups = static_cast<int>(ceil_div(a.W.K, int64_t{kGroup}));
  plan.tiles = window.count / rows_of_tile;
  const int64_t items = int64_t{sm80::expert::most_parts(a, kR * kTileRows)} * plan.tiles;
  if (items <= blocks || items > INT32_MAX / 2) return std::nullopt;
  plan.warps = static_cast<int>(std::min<int64_t>(kMostWarps, ceil_div(items, int64_t{blocks})));
  for (plan.slots = kMostSlots; plan.slots > 0; --plan.slots) {
    for (plan.span = kMostSpan; plan.span > 0; --plan.span) {
      if (plan.lines % plan.span != 0) continue;
      for (plan.stages = kMostStages; plan.stages >= kLeastStages; --plan.stages) {
        plan.scale_slots = plan.items_under_way();
        if (Memory::bytes(plan, a.E) <= kMostShared) return plan;
      }
    }
  }
  return std::nullopt;
}

// Returns whether it computes the window.
template <typename Weights, int kR>
bool launch_rows(const ExpertLinearArgs& a, const Window& window, Stream& stream) {
  const int blocks = static_cast<CudaStream&>(stream).multiprocessors();
  const std::optional<RowsPlan> plan = plan_rows<Weights, kR>(a, window, blocks);
  if (!plan) return false;
  const auto kernel =
      a.weight == nullptr ? rows_kernel<Weights, kR, true> : rows_kernel<Weights, kR, false>;
  const size_t shared = RowsMemory<Weights, kR * kTileRows>::bytes(*plan, a.E);
  abort_if_failed(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(shared)),
                  "expert_linear, shared memory");
  launch_early(stream, "expert_linear", kernel,
               {.grid = static_cast<unsigned>(blocks),
                .threads = static_cast<unsigned>(kBringers + plan->warps) * kWarpSize,
                .shared = shared},
               a, window, *plan, RowsRings::of(*plan), line_map(a.W, kBoxRows, plan->span));
  return true;
}

}  // namespace recurve::cuda::sm90::expert
