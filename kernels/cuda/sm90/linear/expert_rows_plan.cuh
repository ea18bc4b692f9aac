#pragma once
// How a block of expert_rows.cuh divides its memory, and which items are its share.
#include <algorithm>

#include "kernels/ceil_div.h"
#include "kernels/cuda/sm80/linear/expert_linear.cuh"
#include "kernels/cuda/sm90/async.cuh"
#include "kernels/cuda/sm90/tensor_map.h"

namespace recurve::cuda::sm90::expert {

using sm80::kGroup;
using sm80::kRowBytes;
using sm80::kTileRows;

constexpr int kMostWarps = 12, kBringers = 4, kBringing = kBringers * kWarpSize;
constexpr int kMostThreads = (kMostWarps + kBringers) * kWarpSize;
constexpr int kItemRows = 16, kBoxRows = 8;  // rows of W, in two boxes
constexpr int kBoxLineBytes = kBoxRows * kLineBytes;
constexpr int kMostSpan = 4, kMostStages = 16, kMostSlots = 2;
constexpr unsigned kAll = 0xffffffffu;

template <typename Weights>
constexpr int kGroupsOfLine = kLineBytes / Weights::kBytes;
template <typename Weights>
constexpr int kScaleBytes = Weights::kScaled ? (Weights::kHasMinimum ? 4 : 2) : 0;  // of a group

// How the shared memory of a block is divided, in this order.
struct RowsPlan {
  int warps;          // that multiply
  int span, stages;   // lines of a stage, stages of a warp's ring
  int slots;          // parts whose rows are in memory
  int scale_slots;    // items of a warp whose scales are
  int tiles;          // items of a part
  int groups, lines;  // of a row of W

  // Asks for stages ahead reach into so many items of a warp, with the one that it is at.
  int items_under_way() const { return ceil_div(stages - 1, lines / span) + 1; }
  __host__ __device__ int stage_bytes() const { return 2 * span * kBoxLineBytes; }
  __host__ __device__ int ring_bytes() const { return warps * stages * stage_bytes(); }
  __host__ __device__ int slot_bytes(int rows) const { return groups * rows * kRowBytes; }
  // Of a part: for each group, the sums of the rows.
  __host__ __device__ int totals_bytes(int rows, bool has_minimum) const {
    return has_minimum ? groups * rows * static_cast<int>(sizeof(float)) : 0;
  }
  __host__ __device__ int item_scale_bytes(int of_group) const {
    return kItemRows * groups * of_group;
  }
};

// The rings of each number of warps, which have the same memory.
struct RowsRings {
  struct Ring {
    int stages, scale_slots;
  };
  Ring of_warps[kMostWarps];

  // Of a plan, whose warps are the most.
  static RowsRings of(const RowsPlan& most) {
    RowsRings rings{};
    for (int warps = 1; warps <= most.warps; ++warps) {
      RowsPlan plan = most;
      plan.stages = std::min(kMostStages, most.warps * most.stages / warps);
      while (warps * plan.items_under_way() > most.warps * most.scale_slots) --plan.stages;
      rings.of_warps[warps - 1] = {plan.stages, plan.items_under_way()};
    }
    return rings;
  }
  // The plan for so many items: as many warps as have the fewest turns.
  __device__ RowsPlan plan_for(const RowsPlan& most, int items) const {
    RowsPlan plan = most;
    const int turns = (items + most.warps - 1) / most.warps;
    plan.warps = (items + turns - 1) / turns;
    const auto [stages, scale_slots] = of_warps[plan.warps - 1];
    plan.stages = stages;
    plan.scale_slots = scale_slots;
    return plan;
  }
};

template <typename Weights, int kRows>
struct RowsMemory {
  char *ring, *x, *totals, *scales;
  Barrier *full, *x_full, *x_empty;
  int* begins;  // (E + 1): first positions of experts

  // memory: a multiple of 1,024, as the copy engine's swizzle goes by addresses.
  __host__ __device__ RowsMemory(char* memory, const RowsPlan& plan)
      : ring(memory),
        x(ring + plan.ring_bytes()),
        totals(x + plan.slots * plan.slot_bytes(kRows)),
        scales(totals + plan.slots * plan.totals_bytes(kRows, Weights::kHasMinimum)),
        full(reinterpret_cast<Barrier*>(scales + plan.warps * plan.scale_slots *
                                                     plan.item_scale_bytes(kScaleBytes<Weights>))),
        x_full(full + plan.warps * plan.stages),
        x_empty(x_full + kMostSlots),
        begins(reinterpret_cast<int*>(x_empty + kMostSlots)) {}
  // Bytes of all, with so many experts.
  static size_t bytes(const RowsPlan& plan, int E) {
    constexpr uintptr_t kAnywhere = 1 << 20;
    const RowsMemory memory(reinterpret_cast<char*>(kAnywhere), plan);
    return reinterpret_cast<uintptr_t>(memory.begins + E + 1) - kAnywhere;
  }
};

// Goes through the parts in their order.
template <int kRows>
struct PartWalk {
  const int* begins;
  int expert, first;

  __device__ int rows() const { return min(kRows, begins[expert + 1] - first); }
  // There is a next one.
  __device__ void next() {
    first += kRows;
    while (first >= begins[expert + 1]) first = begins[++expert];
  }
};

// The items of a block, and the part of the first of them. By all lanes of a warp.
template <int kRows>
struct Share {
  int begin, end, part;
  PartWalk<kRows> walk;

  __device__ Share(const int* begins, int E, int tiles) : walk{begins, 0, 0} {
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    const int step = (E + kWarpSize - 1) / kWarpSize;
    const int e0 = min(lane * step, E), e1 = min(e0 + step, E);
    const auto parts_of = [&](int e) { return (begins[e + 1] - begins[e] + kRows - 1) / kRows; };
    int mine = 0;
    for (int e = e0; e < e1; ++e) mine += parts_of(e);
    int until = mine;
    for (int offset = 1; offset < kWarpSize; offset *= 2) {
      const int other = __shfl_up_sync(kAll, until, offset);
      if (lane >= offset) until += other;
    }
    const int items = __shfl_sync(kAll, until, kWarpSize - 1) * tiles;
    const int block = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
    const int least = items / blocks, rest = items - least * blocks;  // which some blocks have more
    begin = least * block + min(block, rest);
    end = begin + least + (block < rest ? 1 : 0);
    part = begin / tiles;
    int e = e0, at = part - (until - mine);
    const bool here = at >= 0 && part < until;
    if (here) {
      for (int parts = parts_of(e); at >= parts; parts = parts_of(e)) {
        at -= parts;
        ++e;
      }
      at = begins[e] + at * kRows;
    }
    const int source = max(0, __ffs(static_cast<int>(__ballot_sync(kAll, here))) - 1);
    walk.expert = __shfl_sync(kAll, e, source);
    walk.first = __shfl_sync(kAll, at, source);
  }
};

}  // namespace recurve::cuda::sm90::expert
