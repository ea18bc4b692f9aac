#pragma once
#include "kernels/cuda/sm80/matrix/ssd.cuh"
#include "kernels/cuda/sm80/matrix/tile_weights.cuh"

// The state space in the frame of tiles: C, B and x in the places of queries, keys and values.
namespace recurve::cuda::sm80 {

struct SsdGates {
  SsdArgs a;
  static constexpr bool kStabilised = false;
  __device__ RowGate at(int64_t row, int head) const {
    const SsdStep step = ssd_step_at(a, row, head);
    return {step.log_decay, 0, step.dt};
  }
};

inline TileChunkArgs tiles_of(const SsdArgs& a) {
  const int heads = a.H / a.G;
  return {.seqs = a.seqs,
          .H = a.H,
          .DK = a.N,
          .DV = a.P,
          .chunk = a.chunk,
          .q = {a.C, a.xBC_stride, heads, a.N},
          .k = {a.B, a.xBC_stride, heads, a.N},
          .v = {a.x, a.xBC_stride, 1, a.P},
          .S = a.h,
          .keys_inner = true,
          .z = nullptr,
          .m = nullptr,
          .skip = a.skip,
          .gate = {a.z, a.z_stride, 1, a.P},
          .o = a.y,
          .next_norm = a.next_norm,
          .next = a.next};
}

}  // namespace recurve::cuda::sm80
