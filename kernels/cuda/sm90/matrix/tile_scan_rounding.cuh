#pragma once
#include "kernels/cuda/sm90/matrix/tile_scan.cuh"

// The warps that round values for those that multiply them.
namespace recurve::cuda::sm90::tile_scan {

// Whether one of eight values is no number, or infinite: 0 times that is no number.
__device__ inline bool any_infinite(const uint4& eight) {
  uint32_t zeros = 0;
  const auto add = [&](uint32_t pair) {
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(zeros) : "r"(pair), "r"(0));
  };
  add(eight.x);
  add(eight.y);
  add(eight.z);
  add(eight.w);
  return (zeros & 0x7fff7fff) != 0;
}

// Puts zeros in the place of such values.
__device__ inline void leave_out_infinite(uint4& eight) {
  for (uint32_t* pair : {&eight.x, &eight.y, &eight.z, &eight.w}) {
    if (is_infinite(*pair)) *pair &= 0xffff0000u;
    if (is_infinite(*pair >> 16)) *pair &= 0xffffu;
  }
}

// Rounds a tile, all of it by kRoundingThreads threads. Returns whether this one found such a
// value.
template <int kDK>
__device__ bool round_tile(const Stage<kDK>& stage, const RowBlock& rows, uint16_t* to,
                           int thread) {
  bool found = false;
#pragma unroll 3
  for (int i = thread; i < kTileRows * (kColumns / 8); i += kRoundingThreads) {
    const int row = i % kTileRows, piece = i / kTileRows;
    uint4 eight = round_eight(stage, rows, row, piece, 1);
    if (any_infinite(eight)) {
      found = true;
      leave_out_infinite(eight);
    }
    *reinterpret_cast<uint4*>(to + swizzled_at(row, piece)) = eight;
  }
  return found;
}

template <int kDK>
__device__ void round_tiles(const TileChunkArgs& a, Shared<kDK>& s) {
  const BlockCoord block(a);
  const int thread = static_cast<int>(threadIdx.x) - (Shape<kDK>::kCopyWarp + 1) * kWarpSize;
  const bool first_lane = threadIdx.x % kWarpSize == 0;
  if (block.first == block.end) return;
  wait(&s.arrived, 0);
  for (int n = block.first;; ++n) {
    const RowBlock rows = block.rows(a, n);
    if (rows.L == 0) return;
    const RingStage<Shape<kDK>::kStages> ring(n);
    constexpr int kRounded = Shape<kDK>::kRounded;
    const HandedTile<kRounded> rounded(n - block.first);
    wait(&s.full[ring.index], ring.parity);
    wait_until_taken<kRounded>(s.rounded_empty, n - block.first);
    const bool found = round_tile(s.stages[ring.index], rows, s.rounded[rounded.buffer], thread);
    const uint32_t any = __ballot_sync(0xffffffffu, found);
    if (first_lane) s.infinite[rounded.buffer][thread / kWarpSize] = any;
    show_to_copies();
    arrive(&s.rounded_full[rounded.group]);
    __syncwarp();
    if (first_lane) arrive(&s.empty[ring.index]);
  }
}

}  // namespace recurve::cuda::sm90::tile_scan
