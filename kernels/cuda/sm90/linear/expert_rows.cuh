#pragma once
// Products with the matrices of experts that have few rows each. Blocks stay: each has an equal
// share of the items, which are 16 rows of the matrix of a part. Its first warps multiply, each
// every so many items, and the copy engine keeps a ring of shared memory of each warp full of the
// weights that it is going to read. The other warps bring the rows of x of parts, rounded to bf16,
// ahead of their use. Sums are those of sm80's kernel for few rows, in the same order.
#include "kernels/cuda/sm90/bulk.cuh"
#include "kernels/cuda/sm90/linear/expert_rows_plan.cuh"
#include "kernels/cuda/sm90/tensor_map.h"

namespace recurve::cuda::sm90::expert {

using sm80::expert::row_at;
using sm80::expert::Window;

// Asks for the weights of a warp's items, a stage after the other.
template <typename Weights, int kRows, bool kGates>
class Asker {
 public:
  __device__ Asker(const ExpertLinearArgs& a, const Window& window, const RowsPlan& plan,
                   const CUtensorMap& map, const RowsMemory<Weights, kRows>& memory,
                   const Share<kRows>& share, int warp)
      : a_(a),
        window_(window),
        plan_(plan),
        map_(map),
        share_(share),
        walk_(share.walk),
        ring_(memory.ring + warp * plan.stages * plan.stage_bytes()),
        scales_(memory.scales +
                warp * plan.scale_slots * plan.item_scale_bytes(kScaleBytes<Weights>)),
        full_(memory.full + warp * plan.stages),
        item_(share.begin + warp),
        part_(share.part) {
    find_part();
  }
  // The next stage, into memory that all lanes have read.
  __device__ void ask() {
    if (item_ >= share_.end) return;
    if (threadIdx.x % kWarpSize == 0) load();
    if (++stage_ == plan_.stages) stage_ = 0;
    line_ += plan_.span;
    if (line_ < plan_.lines) return;
    line_ = 0;
    item_ += plan_.warps;
    if (++scale_slot_ == plan_.scale_slots) scale_slot_ = 0;
    find_part();
  }

 private:
  __device__ void find_part() {
    if (item_ >= share_.end) return;
    for (; item_ >= (part_ + 1) * plan_.tiles; ++part_) walk_.next();
  }
  __device__ void load() const {
    const int tile = item_ - part_ * plan_.tiles;
    const int row =
        walk_.expert * window_.N + (kGates ? tile * kBoxRows : window_.first + tile * kItemRows);
    const int rows[] = {row, row + (kGates ? window_.count : kBoxRows)};
    Barrier* const full = full_ + stage_;
    char* const stage = ring_ + stage_ * plan_.stage_bytes();
    const bool scaled = Weights::kScaled && line_ == 0;
    const int bytes = plan_.item_scale_bytes(kScaleBytes<Weights>);
    arrive_expecting(full, static_cast<uint32_t>(plan_.stage_bytes() + (scaled ? bytes : 0)));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      load_boxes(stage + half * plan_.span * kBoxLineBytes, map_, line_, rows[half], full,
                 Keep::kFirstOut);
      if (!scaled) continue;
      const int64_t from = int64_t{rows[half]} * plan_.groups * kScaleBytes<Weights>;
      bulk_load(scales_ + scale_slot_ * bytes + half * bytes / 2,
                static_cast<const char*>(a_.W.scales) + from, static_cast<uint32_t>(bytes / 2),
                full);
    }
  }

  const ExpertLinearArgs& a_;
  const Window& window_;
  const RowsPlan& plan_;
  const CUtensorMap& map_;
  const Share<kRows>& share_;
  PartWalk<kRows> walk_;
  char *const ring_, *const scales_;
  Barrier* const full_;
  int item_, part_, line_ = 0, stage_ = 0, scale_slot_ = 0;
};

// Which of the eight rows of a box is the one of lanes 4 i to 4 i + 3: lanes that read together
// then meet different banks, whatever the format.
__device__ inline int box_row(int i) { return i % 2 * 4 + i / 2 % 2 * 2 + i / 4; }

// The weights of two rows of a box that a lane multiplies, of the i-th group of a line.
template <typename Weights>
struct LineOfLane {
  static constexpr int kQuadBytes = Weights::kBytes == kLineBytes ? 16 : Weights::kBytes / 4;
  // In a box: the swizzle goes by the rows' numbers.
  __device__ static int place() {
    const int row = box_row(static_cast<int>(threadIdx.x) % kWarpSize / 4);
    const int byte = static_cast<int>(threadIdx.x) % 4 * kQuadBytes;
    return row * kLineBytes + (byte ^ row * 16);
  }
  // at: of a line, with place().
  __device__ static void read(typename Weights::Held& held, const char* memory, int at, int i) {
    const auto from = [&](int byte) { return memory + (at ^ byte); };
    if constexpr (Weights::kBytes == kLineBytes) {
      held.slabs[0] = *reinterpret_cast<const uint4*>(from(0));
      held.slabs[1] = *reinterpret_cast<const uint4*>(from(kLineBytes / 2));
    } else {
      held.q = *reinterpret_cast<const decltype(held.q)*>(from(i * Weights::kBytes));
    }
  }
  // scales: of the groups of a row, of which the line's begin at `group`.
  __device__ static void read_scales(typename Weights::Held (&held)[kGroupsOfLine<Weights>],
                                     const char* scales, int group) {
    if constexpr (Weights::kHasMinimum) {
      const uint4 lines = *reinterpret_cast<const uint4*>(scales + group * 4);
      held[0].line = lines.x;
      held[1].line = lines.y;
      held[2].line = lines.z;
      held[3].line = lines.w;
    } else if constexpr (Weights::kScaled) {
      const uint32_t two = *reinterpret_cast<const uint32_t*>(scales + group * 2);
      held[0].scale = static_cast<uint16_t>(two);
      held[1].scale = static_cast<uint16_t>(two >> 16);
    }
  }
};

// A warp's sums of an item: those of a range of groups, and those of the ranges before.
template <typename Weights, int kR>
struct ItemSums {
  using Line = LineOfLane<Weights>;
  using Sums = sm80::expert::Sums<Weights, 1, kR>;
  Sums sums;
  float total[kR * 4] = {};
  int range, left;  // groups of a range, and of this one

  __device__ explicit ItemSums(int of_range) : range(of_range), left(of_range) {}

  // The groups of a line from `group` on. at: of both rows, in memory; scales, of both.
  __device__ void add_line(const char* memory, const int (&at)[2], const char* const (&scales)[2],
                           const char* x, const float* totals, int group, int groups) {
    constexpr int kRows = kR * kTileRows;
    const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
    constexpr int kGroups = kGroupsOfLine<Weights>;
    typename Weights::Held of_row[2][kGroups];
    typename Sums::Group products[kGroups];
#pragma unroll
    for (int half = 0; half < 2; ++half) Line::read_scales(of_row[half], scales[half], group);
    typename Weights::Held held[kGroups][2];
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        held[i][half] = of_row[half][i];
        Line::read(held[i][half], memory, at[half], i);
      }
      const auto x_of = [&](int r, int slab) {
        return sm80::Parts<1>{
            {Weights::read_x(x + (group + i) * kRows * kRowBytes, r * kTileRows + lane / 4, slab)}};
      };
      if constexpr (Weights::kScaled) {
        Sums::multiply(products[i], held[i], x_of);
      } else {
        sums.add(held[i], x_of);
      }
    }
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const int g = group + i;
      if constexpr (Weights::kScaled) {
        sums.add_scaled(products[i], held[i], [&](int r) {
          return *reinterpret_cast<const float2*>(totals + g * kRows + r * kTileRows +
                                                  lane % 4 * 2);
        });
      }
      if (--left == 0 || g + 1 == groups) fold();
    }
  }

 private:
  __device__ void fold() {
    sums.for_each([&, i = 0](int, int, float value) mutable { total[i++] += value; });
    sums = {};
    left = range;
  }
};

// What a warp that multiplies does.
template <typename Weights, int kR, bool kGates>
__device__ void multiply_items(const ExpertLinearArgs& a, const Window& window,
                               const RowsPlan& plan, const CUtensorMap& map, char* base,
                               const RowsMemory<Weights, kR * kTileRows>& memory,
                               const Share<kR * kTileRows>& share, int warp) {
  constexpr int kRows = kR * kTileRows;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  Asker<Weights, kRows, kGates> asker(a, window, plan, map, memory, share, warp);
  for (int i = 0; i < plan.stages; ++i) asker.ask();
  const int range = (plan.groups + sm80::expert::kWarps - 1) / sm80::expert::kWarps;
  const int row = box_row(lane / 4);
  const int ring = warp * plan.stages * plan.stage_bytes() + LineOfLane<Weights>::place();
  const int row_scales = plan.groups * kScaleBytes<Weights>;
  const char* const warp_scales =
      memory.scales + warp * plan.scale_slots * kItemRows * row_scales + row * row_scales;
  Barrier* const full = memory.full + warp * plan.stages;
  int stage = 0, scale_slot = 0, x_slot = 0, item = share.begin + warp;
  uint32_t parity = 0, x_parity = 0;
  PartWalk<kRows> walk = share.walk;
  for (int part = share.part;; ++part) {
    wait(&memory.x_full[x_slot], x_parity);
    const char* const x = memory.x + x_slot * plan.slot_bytes(kRows);
    const auto* const totals = reinterpret_cast<const float*>(
        memory.totals + x_slot * plan.totals_bytes(kRows, Weights::kHasMinimum));
    const int end = min(share.end, (part + 1) * plan.tiles), rows = walk.rows();
    for (; item < end; item += plan.warps) {
      ItemSums<Weights, kR> sums(range);
      const char* const scales = warp_scales + scale_slot * kItemRows * row_scales;
      const char* const both[] = {scales, scales + kBoxRows * row_scales};
      for (int line = 0; line < plan.lines; line += plan.span) {
        wait(&full[stage], parity);
        const int from = ring + stage * plan.stage_bytes();
        for (int i = 0; i < plan.span; ++i) {
          const int at[] = {from + i * kBoxLineBytes, from + (plan.span + i) * kBoxLineBytes};
          sums.add_line(base, at, both, x, totals, (line + i) * kGroupsOfLine<Weights>,
                        plan.groups);
        }
        __syncwarp();  // all lanes have read
        asker.ask();
        if (++stage == plan.stages) {
          stage = 0;
          parity ^= 1;
        }
      }
      if (++scale_slot == plan.scale_slots) scale_slot = 0;
      const int tile = item - part * plan.tiles;
      const int j = tile * (kGates ? kBoxRows : kItemRows) + row;
#pragma unroll
      for (int i = 0; i < kR * 4; ++i) {
        const int of_part = i / 4 * kTileRows + lane % 4 * 2 + i % 2;
        if (of_part >= rows || (kGates && i % 4 >= 2)) continue;
        sm80::expert::finish<kGates>(a, window, walk.first + of_part, j + i % 4 / 2 * kBoxRows,
                                     sums.total[i], kGates ? sums.total[i + 2] : 0);
      }
    }
    if (share.end <= (part + 1) * plan.tiles) return;
    __syncwarp();
    if (lane == 0) arrive(&memory.x_empty[x_slot]);
    if (++x_slot == plan.slots) {
      x_slot = 0;
      x_parity ^= 1;
    }
    walk.next();
  }
}

// Brings rows of x, zeros behind their ends: row_of_lane is that of the lane's number. By all warps
// that bring.
template <typename Weights, int kRows>
__device__ void bring_rows(const float* row_of_lane, int rows, char* slot, int thread, int K,
                           int groups) {
  constexpr int kAtOnce = 4, kChunks = kRowBytes / 16;
  const int chunks = groups * kChunks, all = rows * chunks;
  for (int first = 0; first < all; first += kAtOnce * kBringing) {
    float4 values[kAtOnce][2];
    int row[kAtOnce], chunk[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int number = first + i * kBringing + thread;
      row[i] = number / chunks;
      chunk[i] = number - row[i] * chunks;
      const auto* const from = reinterpret_cast<const float*>(
          __shfl_sync(kAll, reinterpret_cast<uint64_t>(row_of_lane), row[i]));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int k = chunk[i] * 8 + half * 4;
        values[i][half] =
            row[i] < rows && k < K ? *reinterpret_cast<const float4*>(from + k) : float4{};
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (row[i] >= rows) break;
      *reinterpret_cast<uint4*>(slot + (chunk[i] / kChunks * kRows + row[i]) * kRowBytes +
                                16 * Weights::x_place(row[i], chunk[i] % kChunks)) =
          sm80::round_to_parts(values[i][0], values[i][1]).part[0];
    }
  }
}

// The sums of the rows of x of each group, which the minima of weights are multiplied by.
template <typename Weights, int kR>
__device__ void sum_groups(const char* slot, float* totals, int warp, int groups) {
  constexpr int kRows = kR * kTileRows;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll 4
  for (int i = warp; i < groups * kR; i += kBringers) {
    const int group = i / kR, r = i % kR;
    float total[4] = {};
#pragma unroll
    for (int slab = 0; slab < 2; ++slab) {
      sm80::expert::add_ones(
          total, Weights::read_x(slot + group * kRows * kRowBytes, r * kTileRows + lane / 4, slab));
    }
    if (lane < 4) {
      *reinterpret_cast<float2*>(totals + group * kRows + r * kTileRows + lane * 2) =
          make_float2(total[0], total[1]);
    }
  }
}

__device__ inline void sync_bringing() {
  asm volatile("bar.sync 1, %0;" ::"n"(kBringing) : "memory");
}

// What the warps that bring x do.
template <typename Weights, int kR, bool kGates>
__device__ void bring_parts(const ExpertLinearArgs& a, const RowsPlan& plan,
                            const RowsMemory<Weights, kR * kTileRows>& memory,
                            const Share<kR * kTileRows>& share, int warp) {
  constexpr int kRows = kR * kTileRows;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, K = static_cast<int>(a.W.K);
  PartWalk<kRows> walk = share.walk;
  int x_slot = 0;
  uint32_t parity = 1;  // of the turn before the first
  for (int part = share.part;; ++part) {
    const int rows = walk.rows();
    const float* row_of_lane = lane < rows ? row_at<kGates>(a, walk.first + lane) : nullptr;
    wait(&memory.x_empty[x_slot], parity);
    char* const slot = memory.x + x_slot * plan.slot_bytes(kRows);
    bring_rows<Weights, kRows>(row_of_lane, rows, slot, warp * kWarpSize + lane, K, plan.groups);
    if constexpr (Weights::kHasMinimum) {
      sync_bringing();
      auto* const totals =
          reinterpret_cast<float*>(memory.totals + x_slot * plan.totals_bytes(kRows, true));
      sum_groups<Weights, kR>(slot, totals, warp, plan.groups);
    }
    arrive(&memory.x_full[x_slot]);
    if (share.end <= (part + 1) * plan.tiles) return;
    if (++x_slot == plan.slots) {
      x_slot = 0;
      parity ^= 1;
    }
    walk.next();
  }
}

template <typename Weights, int kR, bool kGates>
__global__ void __launch_bounds__(kMostThreads, 1)
    rows_kernel(const __grid_constant__ ExpertLinearArgs a, const __grid_constant__ Window window,
                const __grid_constant__ RowsPlan most, const __grid_constant__ RowsRings rings,
                const __grid_constant__ CUtensorMap map) {
  constexpr int kRows = kR * kTileRows;
  extern __shared__ __align__(1024) char block_memory[];
  const RowsMemory<Weights, kRows> memory(block_memory, most);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  if (thread == 0) prefetch_map(map);
  wait_for_previous();
  let_next_start();
  if (a.begin == nullptr) {
    if (thread < 2) memory.begins[thread] = thread * a.rows;
  } else {
    for (int e = thread; e <= a.E; e += threads) memory.begins[e] = a.begin[e];
  }
  __syncthreads();
  const Share<kRows> share(memory.begins, a.E, most.tiles);
  if (share.begin == share.end) return;
  const RowsPlan plan = rings.plan_for(most, share.end - share.begin);
  for (int i = thread; i < plan.warps * plan.stages; i += threads) {
    init_barrier(&memory.full[i], 1);
  }
  if (thread < plan.slots) {
    init_barrier(&memory.x_full[thread], kBringing);
    init_barrier(&memory.x_empty[thread], plan.warps);
  }
  publish_barriers();
  __syncthreads();
  // This is the same for a whole warp, which the compiler has to see.
  const int warp = __shfl_sync(kAll, thread / kWarpSize, 0);
  if (warp < kBringers) {
    bring_parts<Weights, kR, kGates>(a, plan, memory, share, warp);
  } else if (warp - kBringers < plan.warps) {
    multiply_items<Weights, kR, kGates>(a, window, plan, map, block_memory, memory, share,
                                        warp - kBringers);
  }
}

}  // namespace recurve::cuda::sm90::expert
