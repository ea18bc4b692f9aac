#pragma once
#include "kernels/cuda/sm90/tile_scan.cuh"

// The warps that round values for those that multiply them.
namespace recurve::cuda::sm90::tile_scan {

// Eight values of a row, which it has or not, and whether one of them is no number, or infinite.
struct EightValues {
  float4 low = {}, high = {};

  __device__ uint4 rounded(float by) const {
    return make_uint4(round_bf16(low.x * by, low.y * by), round_bf16(low.z * by, low.w * by),
                      round_bf16(high.x * by, high.y * by), round_bf16(high.z * by, high.w * by));
  }
};

// Puts zeros in the place of values that are no numbers, or infinite: whether there were any.
__device__ inline bool leave_out_infinite(uint4& eight) {
  bool found = false;
  for (uint32_t* pair : {&eight.x, &eight.y, &eight.z, &eight.w}) {
    if (is_infinite(*pair)) *pair &= 0xffff0000u, found = true;
    if (is_infinite(*pair >> 16)) *pair &= 0xffffu, found = true;
  }
  return found;
}

// Of a tile, all by kRoundingThreads threads: whether this one found an infinite value.
template <int kDK>
__device__ bool round_tile(const Stage<kDK>& stage, const RowBlock& rows, RoundedValues& to,
                           int thread) {
  bool found = false;
  for (int i = thread; i < kTileRows * (kColumns / 8); i += kRoundingThreads) {
    const int row = i % kTileRows, piece = i / kTileRows;
    EightValues values;
    if (row < rows.L) {  // else what was loaded is another sequence's
      const float* from = stage.v;
      values.low = *reinterpret_cast<const float4*>(from + stage.value_at(row, 8 * piece));
      values.high = *reinterpret_cast<const float4*>(from + stage.value_at(row, 8 * piece + 4));
    }
    uint4 v = values.rounded(1);
    found |= leave_out_infinite(v);
    *reinterpret_cast<uint4*>(to.v + swizzled_at(row, piece)) = v;
    *reinterpret_cast<uint4*>(to.weighted + swizzled_at(row, piece)) =
        values.rounded(stage.weights.w[row]);
  }
  return found;
}

template <int kDK>
__device__ void round_tiles(const TileChunkArgs& a, Shared<kDK>& s) {
  const Place place(a);
  const int thread = static_cast<int>(threadIdx.x) - (kCopyWarp + 1) * kWarpSize;
  const bool first_lane = threadIdx.x % kWarpSize == 0;
  for (int n = 0;; ++n) {
    const RowBlock rows = place.rows(a, n);
    if (rows.L == 0) return;
    const Turn<kStages> turn(n);
    const Turn<kRounded> rounded(n);
    wait(&s.full[turn.stage], turn.parity);
    wait(&s.rounded_empty[rounded.stage], rounded.parity ^ 1);
    const bool found = round_tile(s.stages[turn.stage], rows, s.rounded[rounded.stage], thread);
    const uint32_t any = __ballot_sync(0xffffffffu, found);
    if (first_lane) s.infinite[rounded.stage][thread / kWarpSize] = any;
    show_to_copies();
    arrive(&s.rounded_full[rounded.stage]);
    __syncwarp();
    if (first_lane) arrive(&s.empty[turn.stage]);
  }
}

}  // namespace recurve::cuda::sm90::tile_scan
